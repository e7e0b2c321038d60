// Implementation of the port `Sandbox` with mycojobs-launcher. The launcher is started here and ends with this object
// or with the agent.
//
//   auto sandbox = start_sandbox({.libexec_dir = "/usr/libexec/mycojobs", .warm = {{"python", 1}}});
//
// The launcher detects the agent's end only by its socket. PR_SET_PDEATHSIG is not used, since it would fire when the
// *thread* that started the launcher ends; any thread may therefore start it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

struct SandboxConfig {
  std::string libexec_dir;  // folder of mycojobs-launcher and the script hosts
  // Layers that may be missing: cgroup:memory, cgroup:pids, landlock. Any other missing layer is an error.
  std::vector<std::string> allow_missing;
  // Range of host user ids for jobs, if the agent is root. Moved to higher ids if /etc/subuid assigns part of the
  // range.
  std::uint32_t uid_base = 1878982656, uid_count = 65536;
  // Hosts and contexts whose zygotes start in this order after the launcher, up to max_zygotes. Others start at the
  // first run.
  std::vector<std::pair<std::string, ContextId>> initial_zygotes;
  // Maximum number of zygotes. Above it, the one that has served no run for the longest time ends. Zygotes with active
  // runs and warm processes are kept. The setting sandbox.zygotes.
  std::uint32_t max_zygotes = 32;
  // Limits after which a zygote is replaced; 0 means no limit.
  std::uint32_t max_zygote_runs = 5000, max_zygote_age_ms = 3600000;
  // Maximum number of prewarmed sandboxes per zygote, which are set up and confined before their run is known.
  // The actual number follows the load. The setting sandbox.prewarmed.
  std::uint32_t max_prewarmed = 8;
  // Maximum number of runs of one context that a sandbox (namespaces, mounts, groups, ids, filter) serves one after the
  // other, if each run leaves nothing behind. A job's process is never reused. With 1, or if `max_prewarmed` is 0,
  // each run has a new sandbox. The setting sandbox.reused_runs.
  std::uint32_t max_sandbox_runs = 500;
  // Maximum number of processes of warm scripts, idle and in use. Beyond it, the context with the most processes loses
  // the process that has been idle for the longest time. With 0 no process outlives its run. The setting sandbox.warm.
  std::uint32_t max_warm_processes = 16;
  // Owned by the caller and open while the Sandbox exists, or -1. The launcher, every zygote and every job's init have
  // copies of the descriptor; jobs do not. If flock() on the file succeeds, all of these processes have ended.
  int alive_fd = -1;
  std::uint32_t unkillable_ms = 5000;  // if SIGKILL has no effect for this time, the run is reported as unkillable
  // Script hosts in addition to kHostPrograms (launcher_client.cpp). A later entry replaces an earlier entry of the
  // same name and context.
  std::vector<ScriptHost> hosts;
  std::vector<ContextFiles> files;  // contexts whose files have an owner that the operator has chosen
  // Volumes that the start tests: it fails with the reason if a volume cannot be mounted for its owner.
  std::vector<std::pair<ContextId, Volume>> volumes;
  // Folders of fs.write that the start tests in the same way, with a warning for each problem.
  std::vector<std::pair<ContextId, std::string>> written_folders;
  // A step that fails in every set-up, for tests only.
  std::string fail_step;
  // Steps to omit, to measure the effect of each layer: any name in the lists of job and init, "zygote_userns_limit",
  // "zygote_seal", "seccomp" or "netns". The launcher logs a warning, and Outcome::layers does not contain an omitted
  // layer.
  std::vector<std::string> disabled_steps;
};

// Starts the sandbox and returns after a canary job has failed to attack it. Errors: `unsupported`, a layer is missing
// or has no effect (with the remedy); `io`; `unavailable`.
Result<std::unique_ptr<Sandbox>> start_sandbox(const SandboxConfig&);

// Result of a layer's test on this host, for `doctor`.
struct LayerReport {
  std::string name;  // as in Outcome::layers; "canary" is the whole sandbox
  bool ok = false;
  std::string detail;
  std::string remedy;        // empty if ok
  bool is_optional = false;  // a folder of fs.write, for which a job may never ask
};

// Error: the launcher cannot be started or configured; names the layer and the remedy.
Result<std::vector<LayerReport>> probe_layers(const SandboxConfig&);

}  // namespace mycojobs
