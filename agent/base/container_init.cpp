#include "base/container_init.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <initializer_list>

namespace mycojobs {
namespace {

// Returns all signals except those of a fault of this process, which would end the process without a report if they
// were blocked.
sigset_t watched_signals() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&set, fault);
  return set;
}

// Reaps all ended children. Exits if `program` is one of them.
void reap(pid_t program) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended <= 0) return;
    if (ended == program) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

[[noreturn]] void be_first_process(pid_t program, const sigset_t& watched) {
  for (;;) {
    siginfo_t signal{};
    const int number = ::sigwaitinfo(&watched, &signal);
    // SI_KERNEL: sent by a terminal to its whole process group.
    if (number > 0 && number != SIGCHLD && signal.si_code != SI_KERNEL) ::kill(program, number);
    // Also called after other signals, since one SIGCHLD can report several ended children.
    reap(program);
  }
}

}  // namespace

void start_as_container_init() {
  if (::getpid() != 1) return;
  std::signal(SIGCHLD, SIG_DFL);  // NOLINT(cert-err33-c): an ignored SIGCHLD would hide ended children
  const sigset_t watched = watched_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  const pid_t program = ::fork();
  if (program > 0) be_first_process(program, watched);
  if (program < 0) std::perror("mycojobs: process 1 cannot fork, so it reaps no orphans");
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace mycojobs
