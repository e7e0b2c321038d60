// What a runner that starts anew does, before it takes work, about the jobs of those that were this runner before it:
// they need not wait for their leases if it is certain that no process of the old instance is left (instance_lock.h).
#pragma once

#include <string>
#include <vector>

#include "mycojobs/store.h"
#include "worker/types.h"

namespace mycojobs {

// gone: instances whose agent is known to have died on this host; their helpers are given half a lease to follow it.
// What cannot be proved or given back is left to the leases, and the log says so.
void reconcile(LeaseStore&, const WorkerSettings&, const RunnerHold& self, const std::vector<std::string>& gone);

}  // namespace mycojobs
