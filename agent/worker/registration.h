// A runner id belongs to one agent at a time.
#pragma once

#include "mycojobs/store.h"
#include "worker/types.h"

namespace mycojobs {

// Who we are: a new instance name, this host, this boot, this process.
RunnerHold describe_self();

// Takes the runner's id in every context. An id whose holder was a process of this host that is gone is taken over at
// once; one that is held elsewhere is a conflict whose message names the holder and the remedy.
Result<void> register_runner(Store&, const WorkerSettings&, const RunnerHold& self);

}  // namespace mycojobs
