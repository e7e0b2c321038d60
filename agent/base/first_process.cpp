#include "base/first_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace mycojobs {
namespace {

// All but those that a fault of our own raises: blocked, they would end us with no word.
sigset_t watched_signals() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&set, fault);
  return set;
}

// Every child that has ended; leaves if `program` is one of them.
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
    // SI_KERNEL: a terminal's, which its whole process group has got.
    if (number > 0 && number != SIGCHLD && signal.si_code != SI_KERNEL) ::kill(program, number);
    // Also after another signal: one SIGCHLD stands for any number of ends.
    reap(program);
  }
}

}  // namespace

void leave_first_process_behind() {
  if (::getpid() != 1) return;
  std::signal(SIGCHLD, SIG_DFL);  // NOLINT(cert-err33-c): if it were ignored, nobody would learn of ends
  const sigset_t watched = watched_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  const pid_t program = ::fork();
  if (program > 0) be_first_process(program, watched);
  if (program < 0) std::perror("mycojobs: process 1 cannot fork, so it reaps no orphans");
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace mycojobs
