// A runner id belongs to one agent at a time: who takes it, and what becomes of the jobs of those that had it before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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
Result<std::vector<std::string>> register_runner(RunnerStore&, const WorkerSettings&, const RunnerHold& self);

// Before it takes work, a runner gives back the jobs of its former instances: these need not wait for their leases if
// it is certain that no process of the old instance is left (instance_lock.h). gone: instances whose agent is known to
// have died on this host; their helpers are given half a lease to follow it. What cannot be proved or given back is
// left to the leases, and the log says so.
void reconcile(LeaseStore&, const WorkerSettings&, const RunnerHold& self, const std::vector<std::string>& gone);

}  // namespace mycojobs
