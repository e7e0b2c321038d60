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
  std::string last = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const int signal = SIGRTMIN + static_cast<int>(i % 16);
    info.si_signo = signal;
    if (::syscall(SYS_rt_sigqueueinfo, 1, signal, &info) != 0) last = errno_name();
    ::kill(1, SIGCHLD);
    ::kill(1, SIGTERM);
    ::kill(1, SIGSTOP);
  }
  return last;
}

// Every process signals all other processes in a loop.
std::string signal_storm(const Words& words) {
  int start_pipe[2];
  if (::pipe(start_pipe) != 0) return errno_name();
  ::signal(SIGUSR1, SIG_IGN);
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const std::string result = fork_once([&] {
      char byte = 0;
      ::close(start_pipe[1]);
      (void)!::read(start_pipe[0], &byte, 1);  // waits until all processes exist
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
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  return "ok";
}

std::string raise_signal(const Words& words) {
  ::signal(static_cast<int>(parse_number(words, 1)), SIG_DFL);
  ::raise(static_cast<int>(parse_number(words, 1)));
  return "still here";
}

// Reuses pid 2 repeatedly, as far as the pid counter wraps.
std::string reuse_pids(const Words& words) {
  int reached = 0;
  for (unsigned long i = 0; i < parse_number(words, 1); ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    if (pid < 0) return errno_name();
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    ::waitpid(pid, nullptr, 0);
    if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0) ++reached;
    ::close(pidfd);
  }
  return reached == 0 ? "ok" : "reached " + std::to_string(reached);
}

// Returns timers, alarms or signal stacks that were inherited from a zygote.
std::string inherited_clocks(const Words&) {
  std::string found;
  for (int clock : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer{};
    ::getitimer(static_cast<__itimer_which>(clock), &timer);
    if (timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0) found += " timer";
  }
  stack_t stack{};
  ::sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) == 0) found += " sigaltstack";
  sigset_t pending;
  ::sigpending(&pending);
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    if (::sigismember(&pending, signal_number) == 1) found += " pending";
  }
  itimerspec remaining{};
  for (long id = 0; id < 64; ++id) {
    if (::syscall(SYS_timer_gettime, id, &remaining) == 0) found += " posix timer";
  }
  return found.empty() ? "none" : found.substr(1);
}

std::string inherited_state(const Words&) {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  int blocked = 0, ignored = 0;
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    struct sigaction action {};
    if (::sigismember(&mask, signal_number) == 1) ++blocked;
    if (::sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) ++ignored;
  }
  char cwd[256] = {};
  (void)!::getcwd(cwd, sizeof cwd);
  const mode_t mask_of_files = ::umask(0);
  return "cwd=" + std::string(cwd) + " umask=" + std::to_string(mask_of_files) + " blocked=" + std::to_string(blocked) +
         " handled=" + std::to_string(ignored) + " nice=" + std::to_string(::getpriority(PRIO_PROCESS, 0));
}

// Blocked signals are queued until the quota of the user, which includes init, is used up.
std::string queue_up(const Words&) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  const sigval value{};
  for (int i = 0; i < 100000; ++i) {
    if (::sigqueue(::getpid(), SIGRTMIN + i % 8, value) != 0) return errno_name();
  }
  return "ok";
}

}  // namespace

const Attempts& attempts_on_signals() {
  static const Attempts kTable = {
      {"flood_init", flood_init},
      {"signal_storm", signal_storm},
      {"ignore_signals", ignore_signals},
      {"raise", raise_signal},
      {"reuse_pids", reuse_pids},
      {"inherited_clocks", inherited_clocks},
      {"inherited", inherited_state},
      {"kill",
       [](const Words& w) { return describe_result(::kill(std::stoi(w[1]), static_cast<int>(parse_number(w, 2)))); }},
      {"queue_up", queue_up},
  };
  return kTable;
}

}  // namespace mycojobs::test
