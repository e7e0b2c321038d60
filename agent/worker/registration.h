// A runner id belongs to one agent at a time.
#pragma once

#include "mycojobs/store.h"
#include "worker/types.h"

namespace mycojobs {

// Words of Runner::detail. Lost: silent for more than a lease, as other agents saw it; its next heartbeat, if one
// comes, says running again.
inline constexpr std::string_view kRunnerRunning = "running", kRunnerStopped = "stopped", kRunnerLost = "lost";
Result<void> mark_runner(RecordStore&, Id context, Id runner, std::string_view detail);

// Who we are: a new instance name, this host, this boot, this process.
RunnerHold describe_self();

// Takes the runner's id in every context. An id whose holder is gone for certain (a process of this host that has
// ended, an instance whose lock is free) is taken over at once; one that is held elsewhere is a conflict whose message
// names the holder and the remedy. Answers the instances that were taken over.
Result<std::vector<std::string>> register_runner(Store&, const WorkerSettings&, const RunnerHold& self);

}  // namespace mycojobs
