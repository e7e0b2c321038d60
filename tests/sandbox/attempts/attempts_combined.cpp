// Attempts that combine two rows, or try to bypass a rule, and are in no list.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <thread>
#include <vector>

#include "attempt_calls.h"
#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// Causes all violations at the same time, so the supervisor receives many while it kills the job for the first.
std::string cause_violations_in_threads(const Words& words) {
  std::vector<std::thread> threads;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    threads.emplace_back([] {
      for (;;) ::syscall(SYS_ptrace, 0, 0, 0, 0);
    });
  }
  for (auto& thread : threads) thread.join();
  return "still here";
}

// Signals interrupt the call continuously, so the kernel can withdraw the notification before the supervisor reads it.
std::string cause_violation_under_signals(const Words&) {
  struct sigaction handler {};
  handler.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &handler, nullptr);
  const pid_t self = ::getpid();
  const pid_t main_thread = static_cast<pid_t>(::syscall(SYS_gettid));
  std::thread([=] {
    for (;;) ::syscall(SYS_tgkill, self, main_thread, SIGUSR1);
  }).detach();
  // The calls repeat for a second, because a busy supervisor may miss the first ones. No call is executed before it
  // reads.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1000);
  while (std::chrono::steady_clock::now() < deadline) ::syscall(SYS_bpf, 0, 0, 0);
  return "still here";
}

std::string cause_violation_without_descriptors(const Words&) {
  ::close_range(0, ~0U, 0);
  ::syscall(SYS_keyctl, 0, 0, 0);
  return "still here";
}

// The parent exits, and its orphan makes the forbidden call.
std::string cause_violation_in_orphan(const Words&) {
  const std::string result = fork_without_waiting([] {
    ::setsid();
    fork_without_waiting([] {
      ::syscall(SYS_ptrace, 0, 0, 0, 0);
      for (;;) ::pause();
    });
  });
  for (;;) ::pause();
  return result;
}

std::string cause_violation_with_control_characters(const Words&) {
  ::prctl(PR_SET_NAME, "\x1b[2J\n\x01;\"", 0, 0, 0);
  ::syscall(SYS_keyctl, 0, 0, 0);
  return "still here";
}

std::string block_in_vfork(const Words&) {
  if (::vfork() == 0) {
    for (;;) ::pause();
  }
  return "ok";
}

std::string stop_own_process(const Words&) {
  ::kill(::getpid(), SIGSTOP);
  return "ok";
}

// Sets the addresses that the kernel writes or follows when a thread exits.
std::string set_invalid_exit_addresses(const Words&) {
  void* const inaccessible_page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static struct {
    void* next;
    long offset;
    void* pending;
  } circular_list{&circular_list, 0, inaccessible_page};
  std::string results = describe_result(::syscall(SYS_set_robust_list, &circular_list, 24));
  results += " " + describe_result(::syscall(SYS_set_tid_address, inaccessible_page));
  struct sigevent event {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  int timer = 0;
  struct {
    long interval[2], value[2];
  } timer_value{{0, 0}, {0, 20000000}};
  ::syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer);
  ::syscall(SYS_timer_settime, timer, 0, &timer_value, nullptr);
  ::alarm(1);
  return results;
}

std::string send_file_to_pipe(const Words& words) {
  int pipe_ends[2];
  const int file = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || ::pipe(pipe_ends) != 0) return get_errno_name();
  return describe_result(::sendfile(pipe_ends[1], file, nullptr, 16));
}

// Executes the program of the host again, as if it had to serve. Descriptor 3 is the descriptor of the job.
std::string execute_host_again(const Words&) {
  const int code = run_in_child([] {
    ::execl("/host", "attempt_host", static_cast<char*>(nullptr));
    return 126;
  });
  return "left with " + std::to_string(code);
}

// Exceeds the memory limit with memory outside the process.
std::string exceed_memory(const Words&) {
  const std::string block(1 << 20, 'h');
  ::signal(SIGXFSZ, SIG_IGN);
  for (int round = 0; round < 200; ++round) {
    const int memory = ::memfd_create("hold", 0);
    const int file = ::open(("/tmp/hold" + std::to_string(round)).c_str(), O_CREAT | O_WRONLY, 0600);
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_NONBLOCK) == 0) (void)!::write(pipe_ends[1], block.data(), 65536);
    for (int i = 0; i < 8; ++i) {
      if (memory >= 0 && ::write(memory, block.data(), block.size()) < 0) return get_errno_name();
      if (file >= 0) (void)!::write(file, block.data(), block.size());
    }
  }
  return "ok";
}

sigjmp_buf before_vsyscall;

std::string call_vsyscall(const Words&) {
#ifdef __x86_64__
  using Time = long (*)(long*);
  ::signal(SIGSEGV, [](int) { ::siglongjmp(before_vsyscall, 1); });
  // The kernel maps the vsyscall page at a fixed address for old programs. Debian enables it.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const auto time = reinterpret_cast<Time>(0xffffffffff600400UL);
  const std::string result = sigsetjmp(before_vsyscall, 1) != 0 ? "no page" : time(nullptr) > 0 ? "ok" : "no time";
  ::signal(SIGSEGV, SIG_DFL);
  return result;
#else
  return "ok";
#endif
}

// Tries every listed option of prctl with additional bits that the kernel ignores.
std::string list_permitted_options(const Words& words) {
  const long call = resolve_call_number(words[1]);
  std::string permitted;
  for (std::size_t i = 2; i < words.size(); ++i) {
    for (const unsigned long high : {0UL, 0x123UL << 32, 0xffffffffUL << 32}) {
      const unsigned long option = std::stoul(words[i], nullptr, 0) | high;
      const long result =
          words[1] == "prctl" ? ::syscall(call, option, 1, 0, 0, 0) : ::syscall(call, 1, option, 0, 0, 0);
      if (result < 0 && errno == EPERM) continue;
      permitted += " " + words[i];
    }
  }
  return permitted.empty() ? "none" : permitted.substr(1);
}

std::string list_permitted_calls(const Words& words) {
  std::string permitted;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string result = call_by_name({"call", words[i]});
    if (result != "EPERM" && result != "ENOSYS") permitted += " " + words[i] + "=" + result;
  }
  return permitted.empty() ? "none" : permitted.substr(1);
}

// Wakes waiters of a futex in a page of a host file that all jobs map. A waiter could be another job.
std::string wake_futex_on_shared_page(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return get_errno_name();
  void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  return describe_result(::syscall(SYS_futex, page, FUTEX_WAKE, 1, nullptr, nullptr, 0));
}

}  // namespace

const Attempts& combined_attempts() {
  static const Attempts kTable = {
      {"many_violations", cause_violations_in_threads},
      {"violation_under_signals", cause_violation_under_signals},
      {"violation_without_descriptors", cause_violation_without_descriptors},
      {"violation_by_orphan", cause_violation_in_orphan},
      {"violation_under_name", cause_violation_with_control_characters},
      {"hold_by_vfork", block_in_vfork},
      {"stop_oneself", stop_own_process},
      {"bad_lists", set_invalid_exit_addresses},
      {"file_into_pipe", send_file_to_pipe},
      {"serve_again", execute_host_again},
      {"hold_everything", exceed_memory},
      {"vsyscall", call_vsyscall},
      {"let_through", list_permitted_options},
      {"calls_let_through", list_permitted_calls},
      {"futex_shared", wake_futex_on_shared_page},
  };
  return kTable;
}

}  // namespace mycojobs::test
