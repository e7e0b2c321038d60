#include "sandbox/launcher/guardian.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "sandbox/launcher/id_map.h"
#include "sandbox/messages.h"
#include "sandbox/processes.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kStartFailureExitCode = 71;  // EX_OSERR
// Below 128, since the guardian itself was not killed and has observed the end of all processes.
constexpr int kLauncherKilledExitCode = 70;

// Jobs are in PID namespaces below this one, starting with their zygotes. Other remaining processes are the launcher's
// children that access folders (host_children.h); they end when their disk responds. Returns false if unknown.
bool have_all_jobs_ended() {
  const pid_t self = ::getpid();
  const auto read_pid_namespace = [](pid_t pid) {
    char name[64];
    const ssize_t size = ::readlink(fmt::format("/proc/{}/ns/pid", pid).c_str(), name, sizeof name);
    return std::string(name, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  };
  const std::string own_namespace = read_pid_namespace(self);
  const std::vector<pid_t> processes = list_process_tree(self);
  return !own_namespace.empty() && processes.size() > 1 &&
         std::all_of(processes.begin(), processes.end(),
                     [&](pid_t pid) { return read_pid_namespace(pid) == own_namespace; });
}

[[noreturn]] void exit_guardian(int code) {
  if (::fcntl(kGuardianIds, F_GETFD) >= 0) IdRegistry::remove_entry(kGuardianIds);
  ::_exit(code);
}

[[noreturn]] void run_guardian(pid_t launcher, const sigset_t& watched_signals) {
  ::prctl(PR_SET_NAME, "mycojobs-guard");
  // Closes the agent's socket, on which the launcher's end would otherwise not be visible, and inherited stdio.
  ::close_range(0, kGuardianAlive - 1, 0);
  ::close_range(kGuardianIds + 1, ~0U, 0);
  int code = 0;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended < 0 && errno == ECHILD) exit_guardian(code);
    if (ended == launcher) {
      launcher = -1;
      code = WIFEXITED(status) ? WEXITSTATUS(status) : kLauncherKilledExitCode;
    }
    if (ended > 0) continue;
    if (launcher < 0 && have_all_jobs_ended()) exit_guardian(code);
    siginfo_t signal{};
    if (::sigwaitinfo(&watched_signals, &signal) == kKillLauncher && launcher > 0) ::kill(launcher, SIGKILL);
  }
}

}  // namespace

void fork_launcher() {
  // A blocked signal stays pending for sigwaitinfo(2), even if it would otherwise be ignored.
  sigset_t watched_signals;
  sigset_t previous_mask;
  ::sigemptyset(&watched_signals);
  ::sigaddset(&watched_signals, SIGCHLD);
  ::sigaddset(&watched_signals, kKillLauncher);
  ::sigprocmask(SIG_BLOCK, &watched_signals, &previous_mask);
  const pid_t guardian = ::getpid();
  const pid_t launcher = ::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 ? ::fork() : -1;
  if (launcher < 0) {
    std::perror("mycojobs-launcher: cannot start a guardian");
    ::_exit(kStartFailureExitCode);
  }
  if (launcher > 0) run_guardian(launcher, watched_signals);
  ::sigprocmask(SIG_SETMASK, &previous_mask, nullptr);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != guardian) ::_exit(kStartFailureExitCode);
}

}  // namespace mycojobs::sandbox
