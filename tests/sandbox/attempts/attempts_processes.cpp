// Attempts to create processes and threads, to run programs, and to use CPU and output.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <system_error>
#include <thread>

#include "attempt_calls.h"
#include "attempt_table.h"

namespace mycojobs::test {
namespace {

std::string run_program(const Words& words) {
  const pid_t pid = ::vfork();
  if (pid < 0) return get_errno_name();
  if (pid == 0) {
    ::execl(words[1].c_str(), words[1].c_str(), static_cast<char*>(nullptr));
    ::_exit(errno);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  const int code = WEXITSTATUS(status);
  return code == 0 ? "ok" : ::strerrorname_np(code);
}

std::string exec_in_place(const Words& words) {
  ::execl(words[1].c_str(), words[1].c_str(), static_cast<char*>(nullptr));
  return get_errno_name();
}

std::string exec_memfd(const Words&) {
  const int fd = ::memfd_create("program", 0);
  const std::string text = "#!/bin/true\n";
  (void)!::write(fd, text.data(), text.size());
  char* empty_list[] = {nullptr};
  ::syscall(SYS_execveat, fd, "", empty_list, empty_list, AT_EMPTY_PATH);
  return get_errno_name();
}

std::string copy_and_exec(const Words& words) {
  std::ifstream source("/bin/true", std::ios::binary);
  std::ofstream(words[1], std::ios::binary) << source.rdbuf();
  ::chmod(words[1].c_str(), 0755);
  return exec_in_place(words);
}

std::string fork_bomb(const Words&) {
  for (int count = 0; count < 4096; ++count) {
    const std::string result = fork_without_waiting([] {
      for (;;) ::pause();
    });
    if (result != "ok") return result + " after " + std::to_string(count);
  }
  return "ok";
}

[[noreturn]] void use_cpu() {
  volatile unsigned long counter = 0;
  for (;;) counter = counter + 1;
}

// Leaves a child that continues to use CPU. Returns when the child has used 20 ms.
std::string fork_child_that_uses_cpu(const Words&) {
  const pid_t child = ::fork();
  if (child < 0) return get_errno_name();
  if (child == 0) use_cpu();
  clockid_t clock{};
  timespec cpu_time{};
  if (::clock_getcpuclockid(child, &clock) != 0) return "no clock";
  while (cpu_time.tv_sec == 0 && cpu_time.tv_nsec < 20'000'000) {
    if (::usleep(1000) != 0 || ::clock_gettime(clock, &cpu_time) != 0) return get_errno_name();
  }
  return "ok";
}

std::string thread_bomb(const Words&) {
  for (int count = 0; count < 4096; ++count) {
    try {
      std::thread([] {
        for (;;) ::pause();
      }).detach();
    } catch (const std::system_error& error) {
      return std::string(::strerrorname_np(error.code().value())) + " after " + std::to_string(count);
    }
  }
  return "ok";
}

std::string run_one_thread(const Words&) {
  int run_count = 0;
  std::thread([&] { run_count = 1; }).join();
  return run_count == 1 ? "ok" : "did not run";
}

std::string daemonize(const Words&) {
  const std::string result = fork_without_waiting([] {
    ::setsid();
    fork_without_waiting([] {
      for (;;) ::pause();
    });
  });
  while (::waitpid(-1, nullptr, 0) > 0) continue;
  return result;
}

std::string leave_zombies(const Words& words) {
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    if (const std::string result = fork_without_waiting(); result != "ok")
      return result + " after " + std::to_string(i);
  }
  return "ok";
}

std::string sleep_ms(const Words& words) {
  ::usleep(static_cast<useconds_t>(parse_number(words, 1) * 1000));
  return "ok";
}

// orphans N [MS]: N parents exit, each with a child that exits MS (default 1) later, so init must reap all children.
// On a busy host, init reaps with a delay, so a failed fork is repeated.
std::string create_orphans(const Words& words) {
  const useconds_t lifetime_us = static_cast<useconds_t>(words.size() > 2 ? parse_number(words, 2) : 1) * 1000;
  const auto create_orphan = [lifetime_us] {
    return run_in_child([=] { return fork_without_waiting([=] { ::usleep(lifetime_us); }) == "ok" ? 0 : 1; });
  };
  constexpr int kMaxForkAttempts = 3000;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    for (int attempts = 0; create_orphan() != 0; ++attempts) {
      if (attempts == kMaxForkAttempts) return "fork after " + std::to_string(i);
      ::usleep(1000);
    }
  }
  return "ok";
}

// Sets the core limit. Returns "kept" if the call succeeded and the limit is unchanged.
std::string set_core_limit(const Words& words) {
  rlimit initial_limit{}, new_limit{};
  ::getrlimit(RLIMIT_CORE, &initial_limit);
  rlimit requested = initial_limit;
  requested.rlim_cur = parse_number(words, 1);
  if (words.size() > 2) requested.rlim_max = parse_number(words, 2);
  if (::syscall(SYS_setrlimit, RLIMIT_CORE, &requested) != 0) return get_errno_name();
  ::getrlimit(RLIMIT_CORE, &new_limit);
  return initial_limit.rlim_cur == new_limit.rlim_cur && initial_limit.rlim_max == new_limit.rlim_max ? "kept" : "ok";
}

// Tests an executed program, which is dumpable again. "kept" has the same meaning as for set_core_limit().
std::string set_core_limit_after_exec(const Words&) {
  const int code = run_in_child([] {
    ::execl("/bin/sh", "sh", "-c",
            "core() { while read -r line; do case $line in *core*) echo $line;; esac; done </proc/self/limits; }\n"
            "before=$(core); ulimit -c 0 2>/dev/null || exit 1; [ \"$before\" = \"$(core)\" ] && exit 2; exit 0",
            static_cast<char*>(nullptr));
    return 99;
  });
  return code == 1 ? "EPERM" : code == 2 ? "kept" : code == 0 ? "ok" : "code " + std::to_string(code);
}

// "set_ids setresuid own -1 other" passes the job's own id, -1, or another id; "own+high" sets upper bits. Returns "ok"
// if the call succeeded and all ids are unchanged.
std::string set_ids(const Words& words) {
  const auto get_ids = [] {
    std::array<uid_t, 6> ids{};
    ::getresuid(&ids[0], &ids[1], &ids[2]);
    ::getresgid(&ids[3], &ids[4], &ids[5]);
    return ids;
  };
  const auto initial_ids = get_ids();
  unsigned long args[3] = {};
  for (std::size_t i = 0; i < 3 && i + 2 < words.size(); ++i) {
    const std::string& word = words[i + 2];
    args[i] = word == "-1" ? 0xffffffffUL : initial_ids[0];
    if (word == "other") args[i] = initial_ids[0] == 0 ? 1 : 0;
    if (word == "own+high") args[i] |= 0x123UL << 32;
  }
  if (::syscall(resolve_call_number(words[1]), args[0], args[1], args[2]) != 0) return get_errno_name();
  return initial_ids == get_ids() ? "ok" : "changed";
}

std::string get_scheduler(const Words&) {
  return "policy=" + std::to_string(::sched_getscheduler(0)) +
         " nice=" + std::to_string(::getpriority(PRIO_PROCESS, 0));
}

// Runs a shell that runs a shell, and so on; the last shell makes the forbidden attempt.
std::string run_shell(const Words& words) {
  std::string script;
  for (std::size_t i = 1; i < words.size(); ++i) script += (i > 1 ? " " : "") + words[i];
  const int code = run_in_child([&] {
    ::execl("/bin/sh", "sh", "-c", script.c_str(), static_cast<char*>(nullptr));
    return 126;
  });
  return std::to_string(code);
}

// Recursion without end, written so that the compiler cannot detect it.
std::string overflow_stack(unsigned long depth) {
  if (depth == ~0UL) return "the bottom";
  volatile char buffer[4096];
  buffer[0] = static_cast<char>(depth);
  const std::string result = overflow_stack(depth + 1);
  return result + buffer[0];
}

std::string print_mib(const Words& words) {
  const std::string block(1 << 20, 'x');
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    for (int fd : {1, 2}) {
      for (std::size_t offset = 0; offset < block.size();) {
        const ssize_t written = ::write(fd, block.data() + offset, block.size() - offset);
        if (written <= 0) return get_errno_name();
        offset += static_cast<std::size_t>(written);
      }
    }
  }
  return "ok";
}

// Searches for processes other than init and itself, to inspect or signal them.
std::string search_other_processes(const Words& words) {
  const pid_t self = ::getpid();
  timespec start{}, now{};
  ::clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    for (pid_t pid = 3; pid < 200; ++pid) {
      if (pid == self) continue;
      if (::kill(pid, 0) == 0 || errno != ESRCH) return "process " + std::to_string(pid);
      for (const char* file : {"/mem", "/environ", "/root/tmp", "/fd"}) {
        const std::string path = "/proc/" + std::to_string(pid) + file;
        if (::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0) return path;
      }
    }
    ::clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 <
           static_cast<long>(parse_number(words, 1)));
  return "none";
}

std::string describe_streams(const Words&) {
  std::string text;
  int terminals = 0;
  for (int fd = 0; fd < 5; ++fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return get_errno_name();
    const mode_t mode = info.st_mode;
    text += std::to_string(fd) + (S_ISFIFO(mode)   ? ":pipe "
                                  : S_ISSOCK(mode) ? ":socket "
                                  : S_ISCHR(mode)  ? ":character "
                                                   : ":file ");
    terminals += ::isatty(fd);
  }
  return text + "tty:" + std::to_string(terminals);
}

}  // namespace

const Attempts& process_attempts() {
  static const Attempts kTable = {
      {"fork", [](const Words&) { return fork_without_waiting(); }},
      {"thread", run_one_thread},
      {"fork_burn", fork_child_that_uses_cpu},
      {"fork_spin", [](const Words&) { return fork_without_waiting(use_cpu); }},
      {"environ",
       [](const Words&) {
         std::string text;
         for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
           text += std::string(*variable) + " ";
         return text;
       }},
      {"fork_bomb", fork_bomb},
      {"thread_bomb", thread_bomb},
      {"exec", exec_in_place},
      {"run", run_program},
      {"exec_memfd", exec_memfd},
      {"exec_copy", copy_and_exec},
      {"daemonize", daemonize},
      {"zombies", leave_zombies},
      {"spin", [](const Words&) -> std::string { use_cpu(); }},
      {"sleep", sleep_ms},
      {"getpid", [](const Words&) { return std::to_string(::getpid()) + " of " + std::to_string(::getppid()); }},
      {"getuid", [](const Words&) { return std::to_string(::getuid()); }},
      {"print",
       [](const Words& words) {
         (void)!::write(1, words[1].data(), words[1].size());
         return std::string("ok");
       }},
      {"exit", [](const Words& words) -> std::string { ::_exit(static_cast<int>(parse_number(words, 1))); }},
      {"orphans", create_orphans},
      {"core_limit", set_core_limit},
      {"core_limit_exec", set_core_limit_after_exec},
      {"set_ids", set_ids},
      {"sched", get_scheduler},
      {"shell", run_shell},
      {"overflow_stack", [](const Words&) { return overflow_stack(0); }},
      {"print_mib", print_mib},
      {"print_forever",
       [](const Words&) -> std::string {
         const std::string block(65536, 'y');
         while (::write(1, block.data(), block.size()) > 0) continue;
         return get_errno_name();
       }},
      {"nice", [](const Words& words) { return describe_result(::setpriority(PRIO_PROCESS, 0, std::stoi(words[1]))); }},
      {"pause",
       [](const Words&) -> std::string {
         for (;;) ::pause();
       }},
      {"race_for_others", search_other_processes},
      {"stdio", describe_streams},
      {"print_uid",
       [](const Words&) {
         const std::string text = "uid " + std::to_string(::getuid());
         (void)!::write(1, text.data(), text.size());
         return std::string("ok");
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
