// advance_run() loads the run of a flow, decides, and commits; after a conflicting commit of another process it
// starts again. The loop of the coordinator, recovery, commands and RPC methods all use this function. The revision of
// the flow fences every commit. Used by the thread of the FlowStore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "flows/flow_decider.h"
#include "flows/flow_run.h"
#include "store/flow_store.h"

namespace mycojobs {

struct FlowProgress {
  FlowStatus status = FlowStatus::dispatched;
  std::string detail;
  std::uint64_t revision = 0;
  std::uint32_t fact_count = 0;        // number of facts that this call appended
  std::size_t waiting_gate_count = 0;  // number of nodes that wait for an approval or a gate
  bool has_more_work = false;          // more work is due now
};
struct ProgressRequest {
  Id context = 0, flow = 0;
  std::optional<StartRun> start;       // applied first
  std::optional<FlowControl> control;  // applied second; an error of the control is returned
  bool is_due = false;                 // the flow is in the list of due flows, so its due time must be set again
  // Check every job, child flow and awaited flow that should be active, independent of events: first planned jobs that
  // are not queued, then completed jobs that are not applied.
  bool must_check_jobs = false;
};
// Applies the request, events and timers until no work is due or the limit of commits per call is reached.
Result<FlowProgress> advance_run(FlowStore&, RunCache&, const ProgressRequest&);

}  // namespace mycojobs
