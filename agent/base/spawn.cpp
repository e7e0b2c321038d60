#include "base/spawn.h"

#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "base/errno_text.h"
#include "base/shortage.h"

namespace mycojobs {
namespace {

// Returns the texts in the format of argv and environ. The texts must outlive the result.
std::vector<char*> to_null_terminated_array(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Child> spawn(const SpawnSpec& spec) {
  std::vector<std::string> arguments{spec.argv0.empty() ? spec.program : spec.argv0};
  arguments.insert(arguments.end(), spec.arguments.begin(), spec.arguments.end());
  std::vector<std::string> environment = spec.environment;

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (auto [source, target] : spec.inherited_descriptors) posix_spawn_file_actions_adddup2(&actions, source, target);
  // The child starts in a session of its own, with default signal actions and without blocked signals.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all_signals;
  sigset_t no_signals;
  sigfillset(&all_signals);
  sigemptyset(&no_signals);
  posix_spawnattr_setsigdefault(&attributes, &all_signals);
  posix_spawnattr_setsigmask(&attributes, &no_signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);

  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, spec.program.c_str(), &actions, &attributes, to_null_terminated_array(arguments).data(),
                    to_null_terminated_array(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    std::string reason = error == EPERM ? ": it cannot be executed, or cannot create a session" : "";
    if (const ResourceShortage* shortage = find_shortage(error)) reason = ": " + describe_shortage(*shortage);
    return fail(Code::io, "cannot start " + spec.program + ": " + errno_text(error) + reason);
  }
  Child child;
  child.pid = pid;
  child.pidfd =
      Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // the child is not reaped yet, so the pid is valid
  if (!child.pidfd) {
    const int pidfd_error = errno;
    ::kill(pid, SIGKILL);
    wait_child(child);
    const ResourceShortage* shortage = find_shortage(pidfd_error);
    return fail(Code::io, "cannot watch " + spec.program + ": " + errno_text(pidfd_error) +
                              (shortage == nullptr ? "" : ": " + describe_shortage(*shortage)));
  }
  return child;
}

int wait_child(Child& child) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  child.pid = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace mycojobs
