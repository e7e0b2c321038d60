#include "base/container_init.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <initializer_list>

namespace mycojobs {
namespace {

// Returns all signals except those that a fault of this process raises: if these were blocked, a fault would end the
// process without a crash report.
sigset_t list_forwarded_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (int fault_signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
    sigdelset(&signals, fault_signal);
  return signals;
}

// Reaps all ended children. If `program_pid` is one of them, exits with the program's exit code (128 + signal).
void reap_children_or_exit(pid_t program_pid) {
  for (;;) {
    int status = 0;
    const pid_t ended_pid = ::waitpid(-1, &status, WNOHANG);
    if (ended_pid <= 0) return;
    if (ended_pid == program_pid) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

[[noreturn]] void run_as_init(pid_t program_pid, const sigset_t& forwarded_signals) {
  for (;;) {
    siginfo_t signal_info{};
    const int signal_number = ::sigwaitinfo(&forwarded_signals, &signal_info);
    // SI_KERNEL marks a signal that a terminal has sent to its whole process group, so the program has received it.
    if (signal_number > 0 && signal_number != SIGCHLD && signal_info.si_code != SI_KERNEL)
      ::kill(program_pid, signal_number);
    // Children are reaped after any signal, because a pending SIGCHLD is not queued again for further ended children.
    reap_children_or_exit(program_pid);
  }
}

}  // namespace

void start_as_container_init() {
  if (::getpid() != 1) return;
  std::signal(SIGCHLD, SIG_DFL);  // NOLINT(cert-err33-c): an ignored SIGCHLD would hide ended children
  const sigset_t forwarded_signals = list_forwarded_signals();
  sigset_t previous_mask;
  ::sigprocmask(SIG_BLOCK, &forwarded_signals, &previous_mask);
  const pid_t program_pid = ::fork();
  if (program_pid > 0) run_as_init(program_pid, forwarded_signals);
  if (program_pid < 0) std::perror("mycojobs: process 1 cannot fork, so it reaps no orphans");
  ::sigprocmask(SIG_SETMASK, &previous_mask, nullptr);
}

}  // namespace mycojobs
