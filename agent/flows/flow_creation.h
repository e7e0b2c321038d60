// Creation of flows: from a definition, from jobs that exist, as a child of another flow, or as a replay of a run. A
// new flow has the detail `new` until it is started (flow_progress.h). The functions have no state; a store is used by
// one thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "flows/flow_plan.h"
#include "flows/flow_run.h"
#include "jobs/job_limits.h"
#include "model/records.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

// Parameters of a new flow.
struct NewFlow {
  Id context = 0, caller = 0;
  TextMap env_vars;  // take precedence over those of the definition
  // Idempotency key of the caller. A repeated call returns the same flow; with another definition it fails with
  // conflict.
  std::string idempotency_key;
  std::string parent;            // "flow:<id> <node>" of the parent; empty if this is not a child flow
  std::string notify = {};       // replaces the `notify` of the definition
  std::string traceparent = {};  // trace context of the caller; may be empty
  // "<context> <deployment>" if the flow performs an effect of a workflow. That deployment is notified of the end of
  // the flow.
  std::string effect_of = {};
};
// Allocates the ids, then writes the jobs, the definition and the record, in separate steps. After a crash in between,
// the same call continues if it has an idempotency key. Otherwise verify reports the incomplete flow, and retention
// deletes it. Errors: invalid (an input or a field is missing); conflict (the key belongs to another definition).
Result<Flow> create_flow(FlowStore&, const FlowPlan&, const NewFlow&);
// Creates a flow of jobs that exist (job.create); the jobs then belong to the flow. `nodes` is that of
// build_definition(). After a crash the same call continues, with or without an idempotency key.
Result<Flow> create_flow_of_jobs(FlowStore&, const std::string& name, const NewFlow&, const std::vector<Job>& jobs,
                                 const nlohmann::json& nodes);
// Converts a record flow:<id> to a flow that can be started, if another client wrote this record and the records of its
// jobs. Has no effect on a flow that this program created, or if there is no record. Errors: invalid,
// too_large (the message names the field of the flow or of its job that is invalid or exceeds the limits of the
// context); nothing was changed.
Result<void> adopt_flow(FlowStore&, Store&, const JobLimits&, Id id);
struct ReplayOptions {
  bool allow_irreversible = false;
  std::string traceparent = {};  // trace of the new run
};
// Creates a new run with the definition, the environment and the caller of an earlier run. Error conflict, unless
// allow_irreversible is set: an irreversible node of the flow or of its child flows, at any depth, has completed (even
// if its end was not applied yet), or a child flow with such a node was deleted.
Result<Flow> replay_flow(FlowStore&, const LoadedRun&, const ReplayOptions&);
// Checks that a retry of the flow may start new child flows for the nodes that it resets. Error conflict: an earlier
// child of such a node has completed an irreversible node, at any depth, or was deleted and has such a node.
Result<void> check_retry(FlowStore&, const LoadedRun&);

}  // namespace mycojobs
