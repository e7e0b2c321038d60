// How a flow moves on: read its run, decide, commit; again if another was faster. The one way, live and in recovery,
// for the coordinator's loop, for commands and for RPC: whoever calls it, the revision fences.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/flow_run.h"
#include "domain/flow_decide.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct FlowProgress {
  FlowStatus status = FlowStatus::dispatched;
  std::string detail;
  std::uint64_t revision = 0;
  std::uint32_t facts = 0;  // that this call appended
  std::size_t gates = 0;    // nodes that wait for people, or whose gates wait
  bool more = false;        // there is more to do at once
};
struct ProgressRequest {
  Id context = 0, flow = 0;
  std::optional<StartRun> start;       // this first
  std::optional<FlowControl> control;  // and this: its error is the answer
  bool due = false;                    // it stood among those that are due: it is put off until something is due again
  bool recover = false;  // look at every job, child and awaited flow that should be under way, whatever events say:
                         // planned but unscheduled first, then completed but unapplied
};
// Applies what has happened, what time has brought and what is asked for, until nothing is left or a bound is met.
Result<FlowProgress> progress(FlowStore&, RunCache&, const ProgressRequest&);

}  // namespace mycojobs
