// Attempts to signal other processes, and to find signal state that was inherited from the zygote.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// Sends all signals to pid 1, which handles none. Tests the cost of the queue and whether init continues to work.
std::string flood_init(const Words& words) {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  std::string last_result = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const int signal = SIGRTMIN + static_cast<int>(i % 16);
    info.si_signo = signal;
    if (::syscall(SYS_rt_sigqueueinfo, 1, signal, &info) != 0) last_result = get_errno_name();
    ::kill(1, SIGCHLD);
    ::kill(1, SIGTERM);
    ::kill(1, SIGSTOP);
  }
  return last_result;
}

// Every process signals all other processes in a loop.
std::string send_signals_from_processes(const Words& words) {
  int start_pipe[2];
  if (::pipe(start_pipe) != 0) return get_errno_name();
  ::signal(SIGUSR1, SIG_IGN);
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const std::string result = fork_without_waiting([&] {
      char byte = 0;
      ::close(start_pipe[1]);
      (void)!::read(start_pipe[0], &byte, 1);  // Waits until all processes exist.
      for (;;) ::kill(-1, SIGUSR1);
    });
    if (result != "ok") return result;
  }
  (void)!::write(1, "storm", 5);
  ::close(start_pipe[1]);
  for (;;) ::kill(-1, SIGUSR1);
}

std::string ignore_signals(const Words&) {
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) ::signal(signal_number, SIG_IGN);
  sigset_t all_signals;
  ::sigfillset(&all_signals);
  ::sigprocmask(SIG_BLOCK, &all_signals, nullptr);
  return "ok";
}

std::string raise_signal(const Words& words) {
  ::signal(static_cast<int>(parse_number(words, 1)), SIG_DFL);
  ::raise(static_cast<int>(parse_number(words, 1)));
  return "still here";
}

// Reuses pid 2 repeatedly, as far as the pid counter wraps.
std::string reuse_pids(const Words& words) {
  int reached_count = 0;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    if (pid < 0) return get_errno_name();
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    ::waitpid(pid, nullptr, 0);
    if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0) ++reached_count;
    ::close(pidfd);
  }
  return reached_count == 0 ? "ok" : "reached " + std::to_string(reached_count);
}

// Returns timers, alarms or signal stacks that were inherited from a zygote.
std::string find_inherited_timers(const Words&) {
  std::string findings;
  for (int clock : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer{};
    ::getitimer(static_cast<__itimer_which>(clock), &timer);
    if (timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0) findings += " timer";
  }
  stack_t stack{};
  ::sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) == 0) findings += " sigaltstack";
  sigset_t pending;
  ::sigpending(&pending);
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    if (::sigismember(&pending, signal_number) == 1) findings += " pending";
  }
  itimerspec remaining{};
  for (long id = 0; id < 64; ++id) {
    if (::syscall(SYS_timer_gettime, id, &remaining) == 0) findings += " posix timer";
  }
  return findings.empty() ? "none" : findings.substr(1);
}

std::string describe_inherited_state(const Words&) {
  sigset_t signal_mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &signal_mask);
  int blocked_count = 0, handled_count = 0;
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    struct sigaction action {};
    if (::sigismember(&signal_mask, signal_number) == 1) ++blocked_count;
    if (::sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) ++handled_count;
  }
  char cwd[256] = {};
  (void)!::getcwd(cwd, sizeof cwd);
  const mode_t file_mask = ::umask(0);
  return "cwd=" + std::string(cwd) + " umask=" + std::to_string(file_mask) +
         " blocked=" + std::to_string(blocked_count) + " handled=" + std::to_string(handled_count) +
         " nice=" + std::to_string(::getpriority(PRIO_PROCESS, 0));
}

// Blocked signals are queued until the quota of the user, which includes init, is used up.
std::string queue_signals_until_failure(const Words&) {
  sigset_t all_signals;
  ::sigfillset(&all_signals);
  ::sigprocmask(SIG_BLOCK, &all_signals, nullptr);
  const sigval value{};
  for (int i = 0; i < 100000; ++i) {
    if (::sigqueue(::getpid(), SIGRTMIN + i % 8, value) != 0) return get_errno_name();
  }
  return "ok";
}

}  // namespace

const Attempts& signal_attempts() {
  static const Attempts kTable = {
      {"flood_init", flood_init},
      {"signal_storm", send_signals_from_processes},
      {"ignore_signals", ignore_signals},
      {"raise", raise_signal},
      {"reuse_pids", reuse_pids},
      {"inherited_clocks", find_inherited_timers},
      {"inherited", describe_inherited_state},
      {"kill",
       [](const Words& words) {
         return describe_result(::kill(std::stoi(words[1]), static_cast<int>(parse_number(words, 2))));
       }},
      {"queue_up", queue_signals_until_failure},
  };
  return kTable;
}

}  // namespace mycojobs::test
