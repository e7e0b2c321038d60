// The port `Sandbox` on the real mycojobs-launcher, which is started here and ends when this object does, or the agent.
//
//   auto sandbox = start_sandbox({.libexec_dir = "/usr/libexec/mycojobs", .warm = {{"python", 1}}});
//
// The launcher is tied to the agent by its socket alone, not by PR_SET_PDEATHSIG, which would fire when the *thread*
// that started it ends. So any thread may start it, also one that ends before the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct SandboxConfig {
  std::string libexec_dir;  // holds mycojobs-launcher and the script hosts
  // Layers without which jobs run all the same: cgroup:memory, cgroup:pids, landlock. Every other missing one is an
  // error.
  std::vector<std::string> allow_missing;
  // Ids on the host that belong to jobs, if the agent is root. Moved up where /etc/subuid has other owners.
  std::uint32_t uid_base = 1878982656, uid_count = 65536;
  std::vector<std::pair<std::string, Id>> warm;               // host and context to have ready from the start
  std::uint32_t zygote_runs = 5000, zygote_age_ms = 3600000;  // then a zygote is replaced; 0: never for that
  // Prewarmed sandboxes that each zygote may have ready, set up and confined, before their run is known; 0: none. How
  // many there are follows the load. The setting sandbox.prewarmed.
  std::uint32_t prewarmed = 8;
  // Runs that one sandbox (namespaces, mounts, groups, ids, filter) serves, one after the other and of one context, as
  // long as each leaves nothing behind. A job's process is never used twice. 1, or none prewarmed: everything is made
  // anew for each run. The setting sandbox.reused_runs.
  std::uint32_t sandbox_runs = 500;
  // Processes of warm scripts, resting and in use together, beyond which of the context that has most the one that has
  // rested longest ends; 0: none stays after its run. The setting sandbox.warm.
  std::uint32_t warm_processes = 16;
  // The caller's, kept open while the Sandbox lives. The launcher, every zygote and every job's init hold its open file
  // description as long as they live, and no job does: whoever finds its flock() free knows that all of them are gone.
  int alive_fd = -1;                   // -1: none
  std::uint32_t unkillable_ms = 5000;  // KILL without effect for so long: the run is reported as unkillable
  std::vector<ScriptHost> hosts;       // besides those in the libexec folder (kHosts in client.cpp); a later row of
                                       // the same name and context stands instead of an earlier one
  // For tests: a step that fails in every set-up.
  std::string fail_step;
  // To measure what each layer is worth: steps that are left out (any of job's and init's lists, "zygote_userns_limit",
  // "zygote_seal"), or "seccomp" or "netns". The launcher says so in the log, and no result names such a layer.
  std::vector<std::string> leave_out;
};

// Returns when a throw-away job has attacked the sandbox in vain. Error: unsupported (a layer is missing or does not
// hold; names the remedy), io, unavailable.
Result<std::unique_ptr<Sandbox>> start_sandbox(const SandboxConfig&);

// For `doctor`: what of the sandbox works on this host, decided by trying.
struct LayerReport {
  std::string name;  // as in Outcome::layers; and "canary", the whole of it
  bool ok = false;
  std::string detail;
  std::string remedy;  // empty if ok
};

// Error: the launcher cannot be started, or cannot even begin (names the layer and the remedy).
Result<std::vector<LayerReport>> probe_layers(const SandboxConfig&);

}  // namespace mycojobs
