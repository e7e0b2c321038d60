// Attempts to map executable memory, to exceed memory and descriptor limits, and to raise limits.
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
  const std::size_t size = parse_number(words, 1) << 20;
  auto* memory = static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return get_errno_name();
  for (std::size_t offset = 0; offset < size; offset += 4096) memory[offset] = 1;
  return "ok";
}

std::string open_until_failure(const Words&) {
  for (int count = 0; count < 100000; ++count) {
    if (::epoll_create1(0) < 0) return get_errno_name();
  }
  return "ok";
}

std::string raise_limit(const Words& words) {
  const auto resource = static_cast<__rlimit_resource>(parse_number(words, 1));
  rlimit limit{};
  ::getrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : limit.rlim_max + 1;
  return describe_result(::setrlimit(resource, &limit));
}

std::string map_memory(int protection) {
  void* memory = ::mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? get_errno_name() : "ok";
}

std::string make_executable(const Words&) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return describe_result(::mprotect(memory, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
}

std::string open_many(int (*open_one)()) {
  for (int count = 0; count < 100000; ++count) {
    if (open_one() < 0) return get_errno_name();
  }
  return "ok";
}

// Maps a shared page of a memfd as writable and executable.
std::string map_writable_and_executable(const Words&) {
  const int fd = ::memfd_create("faces", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) return get_errno_name();
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, fd, 0);
  ::close(fd);
  return page == MAP_FAILED ? get_errno_name() : "ok";
}

std::string map_file(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return get_errno_name();
  void* memory = ::mmap(nullptr, 4096, static_cast<int>(parse_number(words, 2)), MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? get_errno_name() : "ok";
}

std::string map_executable_copy(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0700);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) return get_errno_name();
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? get_errno_name() : "ok";
}

// Maps a shared file privately for reading, and tries to write to its page through /proc/self/mem.
std::string write_through_mem(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return get_errno_name();
  void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  const int mem_fd = ::open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  if (mem_fd < 0) return "mem: " + get_errno_name();
  const ssize_t written = ::pwrite(mem_fd, "x", 1, reinterpret_cast<off_t>(page));
  ::close(mem_fd);
  return describe_result(written);
}

std::string fill_pipes_until_failure(const Words&) {
  const std::string block(65536, 'p');
  for (int count = 0; count < 100000; ++count) {
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_NONBLOCK) != 0) return get_errno_name();
    while (::write(pipe_ends[1], block.data(), block.size()) > 0) continue;
  }
  return "ok";
}

std::string fill_memfd(const Words& words) {
  const int fd = ::memfd_create("hold", MFD_CLOEXEC);
  ::signal(SIGXFSZ, SIG_IGN);
  const std::string block(1 << 20, 'm');
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    if (::write(fd, block.data(), block.size()) < 0) return get_errno_name();
  }
  return "ok";
}

}  // namespace

const Attempts& memory_attempts() {
  static const Attempts kTable = {
      {"touch", touch_memory},
      {"descriptors", open_until_failure},
      {"raise_limit", raise_limit},
      {"mlockall", [](const Words&) { return describe_result(::syscall(SYS_mlockall, MCL_CURRENT)); }},
      {"map_wx", [](const Words&) { return map_memory(PROT_READ | PROT_WRITE | PROT_EXEC); }},
      {"map_rx", [](const Words&) { return map_memory(PROT_READ | PROT_EXEC); }},
      {"mprotect_wx", make_executable},
      {"bad_pointer",
       [](const Words&) -> std::string {
         void* inaccessible_page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         return std::to_string(*static_cast<volatile char*>(inaccessible_page));
       }},
      {"map_two_faces", map_writable_and_executable},
      {"map_file", map_file},
      {"map_executable", map_executable_copy},
      {"write_through_mem", write_through_mem},
      {"hold_pipes", fill_pipes_until_failure},
      {"hold_memfd", fill_memfd},
      {"eventfds", [](const Words&) { return open_many([] { return ::eventfd(0, 0); }); }},
      {"timerfds", [](const Words&) { return open_many([] { return ::timerfd_create(CLOCK_MONOTONIC, 0); }); }},
      {"memfds", [](const Words&) { return open_many([] { return ::memfd_create("x", 0); }); }},
      {"posix_timers",
       [](const Words&) {
         return open_many([] {
           timer_t timer;
           sigevent event{};
           event.sigev_notify = SIGEV_NONE;
           return ::timer_create(CLOCK_MONOTONIC, &event, &timer);
         });
       }},
      {"lower_limit",
       [](const Words& words) {
         rlimit limit{};
         ::getrlimit(static_cast<__rlimit_resource>(parse_number(words, 1)), &limit);
         limit.rlim_cur = parse_number(words, 2);
         return describe_result(::setrlimit(static_cast<__rlimit_resource>(parse_number(words, 1)), &limit));
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
