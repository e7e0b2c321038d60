// New flows: from a definition, from jobs that exist, as a child, as a replay.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "coordinator/progress.h"
#include "domain/flow_plan.h"
#include "domain/job_limits.h"
#include "mycojobs/flows.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct NewFlow {
  Id context = 0, caller = 0;
  TextMap env_vars;              // over the definition's own
  std::string idempotency_key;   // of the caller: again gives the same flow; with another definition: conflict
  std::string parent;            // "flow:<id>" and the node's name, for a child
  std::string notify = {};       // instead of the definition's
  std::string traceparent = {};  // of who makes it; empty: none
  std::string effect_of = {};    // "<context> <world>": of whose workflow it is an effect, and who hears of its end
};
// Ids, jobs, definition, record: a flow that has not started (detail new). Killed anywhere in between, the same call
// goes on where it was if it has an idempotency key; else what is there is a finding of verify, and goes with
// retention.
Result<Flow> create_flow(FlowStore&, const FlowPlan&, const NewFlow&);
// Jobs that exist (job.create): they become the flow's. nodes: as definition_of_jobs(). Killed anywhere in between, the
// same call goes on where it was, with a key or without.
Result<Flow> create_flow_of_jobs(FlowStore&, const std::string& name, const NewFlow&, const std::vector<Job>& jobs,
                                 const nlohmann::json& nodes);
// A record flow:<id> that another client has written, whose jobs are records too (seed 001): becomes a flow that can be
// started. One that was made here is left alone. Error invalid or too_large: names the field of the record, or of its
// job, that cannot be, or is over the limits of the context that the ceiling is of; nothing was changed.
Result<void> adopt_flow(FlowStore&, Store&, const JobLimits&, Id flow);
struct Replay {
  bool allow_irreversible = false;
  std::string traceparent = {};  // trace of the new run
};
// A new run of the same definition and environment, of the same caller. Error conflict, unless allowed: an irreversible
// node of the flow or of its child flows, at any depth, has completed (also if its end was not applied yet), or a child
// flow with such a node was deleted.
Result<Flow> replay_flow(FlowStore&, const LoadedRun&, const Replay&);
// Checks that a retry of the flow may start new child flows for the nodes that it resets. Error conflict: an earlier
// child of such a node has completed an irreversible node, at any depth, or was deleted and has such a node.
Result<void> check_retry(FlowStore&, const LoadedRun&);

}  // namespace mycojobs
