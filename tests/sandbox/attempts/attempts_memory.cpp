#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

std::string touch_memory(const Words& words) {
  const std::size_t size = number(words, 1) << 20;
  auto* memory = static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return error_name();
  for (std::size_t at = 0; at < size; at += 4096) memory[at] = 1;
  return "ok";
}

std::string open_without_end(const Words&) {
  for (int made = 0; made < 100000; ++made) {
    if (::epoll_create1(0) < 0) return error_name();
  }
  return "ok";
}

std::string raise_limit(const Words& words) {
  const auto which = static_cast<__rlimit_resource>(number(words, 1));
  rlimit limit{};
  ::getrlimit(which, &limit);
  limit.rlim_cur = limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : limit.rlim_max + 1;
  return verdict(::setrlimit(which, &limit));
}

std::string map_memory(int protection) {
  void* memory = ::mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? error_name() : "ok";
}

std::string make_executable(const Words&) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return verdict(::mprotect(memory, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
}

std::string open_many(int (*make)()) {
  for (int made = 0; made < 100000; ++made) {
    if (make() < 0) return error_name();
  }
  return "ok";
}

// Writes code through one mapping of a memfd and executes it through another, so no page is both writable and
// executable.
std::string map_two_faces(const Words&) {
  const int fd = ::memfd_create("faces", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) return error_name();
  void* all = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, fd, 0);
  ::close(fd);
  return all == MAP_FAILED ? error_name() : "ok";
}

std::string map_file(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return error_name();
  void* memory = ::mmap(nullptr, 4096, static_cast<int>(number(words, 2)), MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? error_name() : "ok";
}

std::string executable_copy_mapped(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0700);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) return error_name();
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? error_name() : "ok";
}

// Maps a shared file privately for reading, and tries to write to its page through /proc/self/mem.
std::string write_through_mem(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return error_name();
  void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  const int mem = ::open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  if (mem < 0) return "mem: " + error_name();
  const ssize_t written = ::pwrite(mem, "x", 1, reinterpret_cast<off_t>(page));
  ::close(mem);
  return verdict(written);
}

std::string hold_pipes(const Words&) {
  const std::string block(65536, 'p');
  for (int made = 0; made < 100000; ++made) {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK) != 0) return error_name();
    while (::write(ends[1], block.data(), block.size()) > 0) continue;
  }
  return "ok";
}

std::string hold_memfd(const Words& words) {
  const int fd = ::memfd_create("hold", MFD_CLOEXEC);
  ::signal(SIGXFSZ, SIG_IGN);
  const std::string block(1 << 20, 'm');
  for (unsigned long i = 0; i < number(words, 1); ++i) {
    if (::write(fd, block.data(), block.size()) < 0) return error_name();
  }
  return "ok";
}

}  // namespace

const Attempts& attempts_on_memory() {
  static const Attempts kTable = {
      {"touch", touch_memory},
      {"descriptors", open_without_end},
      {"raise_limit", raise_limit},
      {"mlockall", [](const Words&) { return verdict(::syscall(SYS_mlockall, MCL_CURRENT)); }},
      {"map_wx", [](const Words&) { return map_memory(PROT_READ | PROT_WRITE | PROT_EXEC); }},
      {"map_rx", [](const Words&) { return map_memory(PROT_READ | PROT_EXEC); }},
      {"mprotect_wx", make_executable},
      {"bad_pointer",
       [](const Words&) -> std::string {
         void* none = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         return std::to_string(*static_cast<volatile char*>(none));
       }},
      {"map_two_faces", map_two_faces},
      {"map_file", map_file},
      {"map_executable", executable_copy_mapped},
      {"write_through_mem", write_through_mem},
      {"hold_pipes", hold_pipes},
      {"hold_memfd", hold_memfd},
      {"eventfds", [](const Words&) { return open_many([] { return ::eventfd(0, 0); }); }},
      {"timerfds", [](const Words&) { return open_many([] { return ::timerfd_create(CLOCK_MONOTONIC, 0); }); }},
      {"memfds", [](const Words&) { return open_many([] { return ::memfd_create("x", 0); }); }},
      {"posix_timers",
       [](const Words&) {
         return open_many([] {
           timer_t timer;
           sigevent none{};
           none.sigev_notify = SIGEV_NONE;
           return ::timer_create(CLOCK_MONOTONIC, &none, &timer);
         });
       }},
      {"lower_limit",
       [](const Words& w) {
         rlimit limit{};
         ::getrlimit(static_cast<__rlimit_resource>(number(w, 1)), &limit);
         limit.rlim_cur = number(w, 2);
         return verdict(::setrlimit(static_cast<__rlimit_resource>(number(w, 1)), &limit));
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
