// State that a job could leave in its sandbox for the next job, and the searches of the next job for it.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// Searches all writable memory of this process, including its stack. The stack must not contain the searched value.
bool search_memory(const std::function<bool(const char* begin, std::size_t size)>& matches) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || std::strncmp(rights, "rw", 2) != 0)
      continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    if (matches(reinterpret_cast<const char*>(begin), end - begin)) return true;
  }
  return false;
}

// Returns the mappings through which a job could change memory of another process: shared mappings, and files of
// private mappings that can be opened for writing or punched.
std::string change_mappings(const Words&) {
  std::string text;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || line.find("[v") != std::string::npos)
      continue;
    if (rights[3] == 's') text += " shared:" + line;
    const std::string file = "/proc/self/map_files/" + line.substr(0, line.find(' '));
    for (const int flags : {O_RDWR, O_RDONLY | O_TRUNC}) {
      if (::open(file.c_str(), flags | O_CLOEXEC) >= 0) text += " opened:" + line;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const memory = reinterpret_cast<void*>(begin);
    const bool is_file_mapping = line.find(" 00:00 0") == std::string::npos;
    if (is_file_mapping && ::madvise(memory, end - begin, MADV_REMOVE) == 0) text += " removed:" + line;
  }
  return text.empty() ? "none" : text.substr(1);
}

// The word is passed in two halves, so the whole word exists in memory only if an earlier run left it.
std::string search_word_in_memory(const Words& words) {
  const std::string first = words[1], second = words[2];
  const bool is_found = search_memory([&](const char* begin, std::size_t size) {
    const char* const end = begin + size;
    while ((begin = static_cast<const char*>(
                ::memmem(begin, static_cast<std::size_t>(end - begin), first.data(), first.size()))) != nullptr) {
      begin += first.size();
      if (static_cast<std::size_t>(end - begin) >= second.size() &&
          std::memcmp(begin, second.data(), second.size()) == 0)
        return true;
    }
    return false;
  });
  return is_found ? "found" : "none";
}

// Searches for the exit notification (signalfd_siginfo) that init read for the previous process.
std::string search_exit_in_memory(const Words&) {
  constexpr std::uint32_t kAlignment = 4;
  const auto previous_pid = static_cast<std::uint32_t>(::getpid()) - 1;
  const bool is_found = search_memory([&](const char* begin, std::size_t size) {
    for (std::size_t offset = 0; offset + sizeof(signalfd_siginfo) <= size; offset += kAlignment) {
      std::array<std::uint32_t, 4> head{};  // signal, errno, code, pid
      std::memcpy(head.data(), begin + offset, sizeof head);
      if (head[0] == SIGCHLD && head[1] == 0 && head[2] == CLD_EXITED && head[3] == previous_pid) return true;
    }
    return false;
  });
  return is_found ? "found" : "none";
}

// Returns all fields of stat() for a folder except the times of the last change.
std::string describe_folder(const Words& words) {
  struct stat info {};
  if (::stat(words[1].c_str(), &info) != 0) return get_errno_name();
  const auto format_time = [](const timespec& time) {
    return " " + std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
  };
  std::string text;
  for (const unsigned long field :
       {static_cast<unsigned long>(info.st_mode), static_cast<unsigned long>(info.st_ino),
        static_cast<unsigned long>(info.st_uid), static_cast<unsigned long>(info.st_gid),
        static_cast<unsigned long>(info.st_nlink), static_cast<unsigned long>(info.st_size)})
    text += std::to_string(field) + " ";
  return text + "times" + format_time(info.st_atim) + format_time(info.st_mtim);
}

// Returns the time of the last status change (ctime) in ns, which no call can set.
std::string get_change_time_ns(const Words& words) {
  struct stat info {};
  if (::stat(words[1].c_str(), &info) != 0) return get_errno_name();
  return std::to_string(info.st_ctim.tv_sec * 1000000000L + info.st_ctim.tv_nsec);
}

std::string set_times(const Words& words) {
  const timespec times[2] = {{0, static_cast<long>(parse_number(words, 2))},
                             {0, static_cast<long>(parse_number(words, 3))}};
  return describe_result(::utimensat(AT_FDCWD, words[1].c_str(), times, 0));
}

std::string mark_folder(const Words& words) {
  const char* path = words[1].c_str();
  std::string results = describe_result(::setxattr(path, "user.left", "x", 1, 0));
  results += " " + describe_result(::setxattr(path, "system.posix_acl_default", "\2\0\0\0", 4, 0));
  const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int flags = FS_NODUMP_FL;
  results += " " + describe_result(::ioctl(folder, FS_IOC_SETFLAGS, &flags));
  fsxattr attributes{};
  attributes.fsx_xflags = FS_XFLAG_NODUMP;
  results += " " + describe_result(::ioctl(folder, FS_IOC_FSSETXATTR, &attributes));
  ::close(folder);
  return results;
}

std::string count_free_blocks_and_files(const Words& words) {
  struct statfs info {};
  if (::statfs(words[1].c_str(), &info) != 0) return get_errno_name();
  return std::to_string(info.f_bfree) + " " + std::to_string(info.f_ffree);
}

// Locks a descriptor that the job received. The lock belongs to the open file, not to the process.
std::string lock_descriptor(const Words& words) {
  const int fd = static_cast<int>(parse_number(words, 1));
  struct flock whole_file {};
  whole_file.l_type = F_RDLCK;
  std::string results = describe_result(::fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND));
  results += " " + describe_result(::flock(fd, LOCK_EX | LOCK_NB));
  return results + " " + describe_result(::fcntl(fd, F_OFD_SETLK, &whole_file));
}

std::string get_flags(const Words& words) {
  const int flags = ::fcntl(static_cast<int>(parse_number(words, 1)), F_GETFL);
  return flags < 0 ? get_errno_name() : std::to_string(flags & (O_NONBLOCK | O_APPEND));
}

// Sends the message with which init reports the end of a run: a kind, followed by zeros.
std::string send_as_init(const Words& words) {
  char text[64] = {};
  text[0] = static_cast<char>(parse_number(words, 2));
  iovec part{text, sizeof text};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return describe_result(::sendmsg(static_cast<int>(parse_number(words, 1)), &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

timespec read_clock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time;
}

void use_cpu(unsigned long ms) {
  timespec now{};
  do {
    now = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  } while (static_cast<unsigned long>(now.tv_sec * 1000 + now.tv_nsec / 1000000) < ms);
}

// Runs N children with MS of CPU each, one after another, without waiting for them. Only the cgroup counts their CPU.
std::string use_cpu_in_unwaited_children(const Words& words) {
  ::signal(SIGCHLD, SIG_IGN);
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    if (const std::string count = fork_without_waiting([&] { use_cpu(parse_number(words, 2)); }); count != "ok")
      return count;
    while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) continue;
  }
  return "ok";
}

// Creates timers on the CPU clock of another process that fire every microsecond of its CPU time. The signals are
// ignored.
std::string create_timers_on_process(const Words& words) {
  const auto clock =
      static_cast<clockid_t>((~static_cast<unsigned>(parse_number(words, 1)) << 3) | 2U);  // CPUCLOCK_SCHED
  struct sigevent event {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGUSR1;
  ::signal(SIGUSR1, SIG_IGN);
  const itimerspec every_microsecond{{0, 1000}, {0, 1000}};
  for (unsigned long i = 0; i < parse_number(words, 2); ++i) {
    int timer = 0;
    if (::syscall(SYS_timer_create, clock, &event, &timer) != 0) return get_errno_name();
    if (::syscall(SYS_timer_settime, timer, 0, &every_microsecond, nullptr) != 0) return get_errno_name();
  }
  return "ok";
}

// Looks up names that do not exist. The kernel caches a negative entry for each; a long name takes about 500 bytes.
std::string look_up_absent_names(const Words& words) {
  // Names of an earlier call are already cached and charged to the group that looked them up first.
  const std::string path = words[1] + "/" + std::to_string(read_clock(CLOCK_BOOTTIME).tv_nsec) + std::string(200, 'n');
  for (unsigned long i = 0; i < parse_number(words, 2); ++i) {
    if (::access((path + std::to_string(i)).c_str(), F_OK) == 0) return "there is one";
  }
  return errno == ENOENT ? "ok" : get_errno_name();
}

// Returns how many signals can be queued for this process. Signals queued for other processes of the user reduce it.
std::string count_queueable_signals(const Words&) {
  sigset_t all_signals;
  ::sigfillset(&all_signals);
  ::sigprocmask(SIG_BLOCK, &all_signals, nullptr);
  int count = 0;
  while (count < 100000 && ::sigqueue(::getpid(), SIGRTMIN, sigval{}) == 0) ++count;
  return std::to_string(count);
}

}  // namespace

const Attempts& reuse_attempts() {
  static const Attempts kTable = {
      {"change_mappings", change_mappings},
      {"word_in_memory", search_word_in_memory},
      {"end_in_memory", search_exit_in_memory},
      {"state_of", describe_folder},
      {"changed_at", get_change_time_ns},
      {"set_times", set_times},
      {"mark_folder", mark_folder},
      {"room_in", count_free_blocks_and_files},
      {"lock_descriptor", lock_descriptor},
      {"flags_of", get_flags},
      {"speak_for_init", send_as_init},
      {"burn_unwaited", use_cpu_in_unwaited_children},
      {"timers_on", create_timers_on_process},
      {"look_up_absent", look_up_absent_names},
      {"room_for_signals", count_queueable_signals},
  };
  return kTable;
}

}  // namespace mycojobs::test
