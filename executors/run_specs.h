// Builds the runs of a job from its executor, the policy that the job requests, and the ceiling of the operator.
#pragma once

#include <cstdint>
#include <vector>

#include "executors/executor.h"
#include "model/policy_json.h"
#include "sandbox/sandbox.h"
#include "security/ceilings.h"

namespace mycojobs {

struct StagedRuns {
  std::vector<RunSpec> specs;             // one for each stage; the caller sets run, context and fence
  Policy policy;                          // policy of the last stage, which runs the script
  std::vector<std::string> lowered = {};  // fields of that policy that the ceiling reduced
};

// Returns the ceiling that applies to a stage, computed from the ceiling of the context.
Ceiling get_stage_ceiling(const Stage&, Ceiling);

// Adds the volumes that the policy names to the grants of a run. Error `denied`: the context has no such volume.
Result<void> add_volumes(const Policy&, const std::vector<Volume>& of_context, RunSpec&);

// Returns the runs of a job. defaults: the operator's defaults, applied over each profile. A null ceiling does not
// limit the policy, and adds no volumes. context: selects the stages; 0 is the context of the ceiling. Error `denied`
// names the field.
Result<StagedRuns> stage_runs(const Executor&, const PolicyRequest& defaults, const PolicyRequest& requested,
                              const Ceiling* ceiling, std::uint64_t timeout_ms, Id context = 0);

}  // namespace mycojobs
