#include "sandbox/probe_layers.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "sandbox/landlock.h"
#include "sandbox/remedy.h"

namespace mycojobs::sandbox {
namespace {

struct NamespaceRow {
  const char* layer;
  int flag;
};
constexpr NamespaceRow kNamespaces[] = {
    {"userns", 0},           {"pidns", CLONE_NEWPID}, {"mountns", CLONE_NEWNS},      {"netns", CLONE_NEWNET},
    {"ipcns", CLONE_NEWIPC}, {"utsns", CLONE_NEWUTS}, {"cgroupns", CLONE_NEWCGROUP},
};

// In a child, inside a new user namespace, as a zygote would. 0 or errno.
int try_namespace(int flag) {
  const pid_t pid = ::fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    const bool ok = ::unshare(CLONE_NEWUSER) == 0 && (flag == 0 || ::unshare(flag) == 0);
    ::_exit(ok ? 0 : errno);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

Layer cgroup_layer(const char* name, bool ok) {
  return {name, ok, ok ? "limits apply" : "no group of our own to set limits in", ok ? "" : remedy_for_layer(name)};
}

}  // namespace

std::vector<Layer> probed_layers(const IdRange& ids, const Cgroups& cgroups, const std::optional<SetupError>& canary) {
  std::vector<Layer> layers;
  for (const auto& row : kNamespaces) {
    const int error = try_namespace(row.flag);
    layers.push_back({row.layer, error == 0, error == 0 ? "can be made" : errno_text(error),
                      error == 0 ? "" : remedy_for_step("zygote_namespaces", error)});
  }
  layers.push_back({"uid", ids.wide(),
                    ids.wide()
                        ? fmt::format("a user of its own for each job, {} to {}", ids.base, ids.base + ids.count - 1)
                        : "all jobs run as the agent's user",
                    ids.wide() ? "" : remedy_for_layer("uid")});
  const bool seccomp = !canary || canary->step != "seccomp";
  layers.push_back({"seccomp", seccomp,
                    seccomp ? "filter loads, forbidden calls are reported" : errno_text(canary->error),
                    seccomp ? "" : canary->remedy});
  const int abi = landlock_abi();
  layers.push_back({"landlock", abi > 0, abi > 0 ? fmt::format("ABI {}", abi) : "not in this kernel",
                    abi > 0 ? "" : remedy_for_layer("landlock")});
  layers.push_back(cgroup_layer("cgroup:memory", cgroups.has_memory()));
  layers.push_back(cgroup_layer("cgroup:pids", cgroups.has_pids()));
  layers.push_back({"canary", !canary.has_value(),
                    canary ? fmt::format("{}: {}", canary->step, errno_text(canary->error))
                           : "a throw-away job attacked the sandbox and got nowhere",
                    canary ? canary->remedy : ""});
  return layers;
}

}  // namespace mycojobs::sandbox
