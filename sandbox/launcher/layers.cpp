#include "sandbox/launcher/layers.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "base/shortage.h"
#include "sandbox/cgroup.h"
#include "sandbox/landlock.h"
#include "sandbox/launcher/id_map.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {
namespace {

struct StepRemedy {
  std::string_view step;  // SetupError::step
  int error;              // 0 matches every errno
  const char* text;
};
// The first matching row is used.
constexpr StepRemedy kStepRemedies[] = {
    {"zygote_program", 0, "install the script host beside the launcher, or set the libexec folder"},
    {"zygote_namespaces", ENOSPC, "raise the sysctl user.max_user_namespaces (and its siblings for other namespaces)"},
    {"zygote_namespaces", EPERM,
     "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1; in a container --security-opt "
     "seccomp=docker/seccomp.json (docker/README.md)"},
    {"zygote_namespaces", 0, "the kernel must have user, pid, mount, network, ipc and uts namespaces"},
    {"zygote_write_maps", EPERM,
     "root needs CAP_SETUID and CAP_SETGID, in a container too (docker/README.md); AppArmor may forbid user "
     "namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile with the userns rule for "
     "mycojobs-launcher"},
    {"zygote_write_maps", 0,
     "AppArmor may forbid user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile with "
     "the "
     "userns rule for mycojobs-launcher; for root, sandbox.uid_range must name ids that exist here"},
    {"zygote_root", EACCES,
     "AppArmor may forbid mounts in user namespaces: a profile with the rules userns and mount is needed, in a "
     "container docker/apparmor (docker/README.md)"},
    {"zygote_hostname", EPERM, "in a container: --security-opt seccomp=docker/seccomp.json (docker/README.md)"},
    {"zygote_root", EPERM,
     "/proc may be masked by a container: --security-opt systempaths=unconfined (docker/README.md); or mounts "
     "forbidden by AppArmor"},
    {"zygote_root", ENODEV, "a device node of the host's /dev is not the expected device"},
    {"zygote_userns_limit", 0, "the kernel must let user.max_user_namespaces be set in a namespace (Linux 4.9)"},
    {"zygote_exec", ENOENT, "the script host or its loader is not below /usr: build it for this system"},
    {"zygote_exec", EACCES, "the script host must be executable for all users (chmod 755)"},
    {"zygote_folder", 0, "use a folder of root or of the agent's user that no other user can write"},
    {"canary", 0, "the sandbox does not confine jobs on this host: run `mycojobs doctor`"},
    {"cgroup_make", 0, "the agent's cgroup must be delegated and writable (systemd: Delegate=yes)"},
    {"cgroups", 0, "the agent's cgroup must be delegated and writable (systemd: Delegate=yes)"},
    {"limits", 0, "request limits with which a job can start"},
    {"namespaces", ENOSPC, "raise the sysctls user.max_mnt_namespaces and user.max_cgroup_namespaces"},
    {"network", ENOSPC, "raise the sysctl user.max_net_namespaces"},
    {"network", ENOENT, "the kernel must have tcp_rmem and its siblings for each network namespace (Linux 4.15)"},
    {"rank", 0, "start the agent with a niceness allowed for jobs: they inherit it"},
    {"proc", EPERM, "/proc may be masked by a container: --security-opt systempaths=unconfined (docker/README.md)"},
    {"seccomp", EBUSY, "another seccomp supervisor traces this process: run the agent outside of it"},
    {"seccomp", 0, "the kernel must have seccomp filters with user notification (Linux 5.0)"},
};

struct LayerRemedy {
  std::string_view layer;
  bool can_be_missing;  // sandbox.allow_missing may list the layer
  const char* text;
};
constexpr LayerRemedy kLayerRemedies[] = {
    {"cgroup:memory", true,
     "run the agent where its cgroup is delegated with the memory controller (systemd: Delegate=yes; a shell: "
     "systemd-run --scope -p Delegate=yes, with --user for an ordinary user; a container: docker/README.md), or list "
     "cgroup:memory in "
     "sandbox.allow_missing"},
    {"cgroup:pids", true,
     "run the agent where its cgroup is delegated with the pids controller (systemd: Delegate=yes; a shell: "
     "systemd-run --scope -p Delegate=yes, with --user for an ordinary user; a container: docker/README.md), or list "
     "cgroup:pids in "
     "sandbox.allow_missing"},
    {"landlock", true,
     "boot a kernel with CONFIG_SECURITY_LANDLOCK and landlock in the lsm= list, or list landlock in "
     "sandbox.allow_missing"},
    {"seccomp", false, "the kernel must have seccomp filters with user notification (Linux 5.0)"},
    {"uid", false, "run the agent as root to give each job its own id"},
};

}  // namespace

std::string remedy_for_step(std::string_view step, int error) {
  if (const ResourceShortage* shortage = find_shortage(error)) return describe_shortage(*shortage);
  for (const auto& row : kStepRemedies) {
    if (row.step == step && (row.error == 0 || row.error == error)) return row.text;
  }
  return "run `mycojobs doctor` to see which layer fails";
}

std::string remedy_for_layer(std::string_view layer) {
  for (const auto& row : kLayerRemedies) {
    if (row.layer == layer) return row.text;
  }
  return {};
}

bool can_layer_be_missing(std::string_view layer) {
  for (const auto& row : kLayerRemedies) {
    if (row.layer == layer) return row.can_be_missing;
  }
  return false;
}

namespace {

struct NamespaceRow {
  const char* layer;
  int flag;  // flag of unshare(); 0 for the user namespace
};
constexpr NamespaceRow kNamespaceRows[] = {
    {"userns", 0},           {"pidns", CLONE_NEWPID}, {"mountns", CLONE_NEWNS},      {"netns", CLONE_NEWNET},
    {"ipcns", CLONE_NEWIPC}, {"utsns", CLONE_NEWUTS}, {"cgroupns", CLONE_NEWCGROUP},
};

// Tries to create a namespace in a child process, inside a new user namespace, like a zygote. `flag` is a CLONE_NEW*
// flag of unshare(); 0 tries only the user namespace. Returns 0 or an errno.
int try_namespace(int flag) {
  const pid_t pid = ::fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    const bool is_created = ::unshare(CLONE_NEWUSER) == 0 && (flag == 0 || ::unshare(flag) == 0);
    ::_exit(is_created ? 0 : errno);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

Layer make_cgroup_layer(const char* name, bool is_available) {
  return {name, is_available, is_available ? "limits apply" : "the agent has no own cgroup for limits",
          is_available ? "" : remedy_for_layer(name)};
}

}  // namespace

std::vector<Layer> probe_layers_separately(const IdRange& ids, const Cgroups& cgroups,
                                           const std::optional<SetupError>& canary_failure) {
  std::vector<Layer> layers;
  for (const auto& row : kNamespaceRows) {
    const int error = try_namespace(row.flag);
    layers.push_back({row.layer, error == 0, error == 0 ? "can be created" : errno_text(error),
                      error == 0 ? "" : remedy_for_step("zygote_namespaces", error)});
  }
  layers.push_back({"uid", ids.has_id_per_job(),
                    ids.has_id_per_job()
                        ? fmt::format("each job has its own user, {} to {}", ids.base, ids.base + ids.count - 1)
                        : "all jobs run as the agent's user",
                    ids.has_id_per_job() ? "" : remedy_for_layer("uid")});
  const bool has_seccomp = !canary_failure || canary_failure->step != "seccomp";
  layers.push_back({"seccomp", has_seccomp,
                    has_seccomp ? "filter loads, forbidden calls are reported" : errno_text(canary_failure->error),
                    has_seccomp ? "" : canary_failure->remedy});
  const int abi = landlock_abi();
  layers.push_back({"landlock", abi > 0, abi > 0 ? fmt::format("ABI {}", abi) : "not in this kernel",
                    abi > 0 ? "" : remedy_for_layer("landlock")});
  layers.push_back(make_cgroup_layer("cgroup:memory", cgroups.has_memory()));
  layers.push_back(make_cgroup_layer("cgroup:pids", cgroups.has_pids()));
  layers.push_back({"canary", !canary_failure.has_value(),
                    canary_failure ? fmt::format("{}: {}", canary_failure->step, errno_text(canary_failure->error))
                                   : "a test job attacked the sandbox without success",
                    canary_failure ? canary_failure->remedy : ""});
  return layers;
}

}  // namespace mycojobs::sandbox
