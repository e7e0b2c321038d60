// Builds the runs of a job from its executor, the policy that the job requests, and the ceiling of the operator.
#pragma once

#include <cstdint>
#include <vector>

#include "executors/executor.h"
#include "model/policy_json.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

struct StagedRuns {
  std::vector<RunSpec> specs;             // one for each stage; run, context and fence are not set
  Policy policy;                          // policy of the last stage, which runs the script
  std::vector<std::string> lowered = {};  // fields of that policy that the ceiling reduced
};

// Returns the ceiling of a stage, given the ceiling of the context.
Ceiling ceiling_of(const Stage&, Ceiling);

// defaults: the operator's defaults, applied over each profile. A null ceiling does not limit the policy. Error
// `denied` names the field.
Result<StagedRuns> stage_runs(const Executor&, const PolicyRequest& defaults, const PolicyRequest& asked,
                              const Ceiling* ceiling, std::uint64_t timeout_ms);

}  // namespace mycojobs
