// From an executor, what a job asks for, and what its operator allows, to the runs that the job is made of.
#pragma once

#include <cstdint>
#include <vector>

#include "domain/policy.h"
#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct StagedRuns {
  std::vector<RunSpec> specs;             // by stage; without run, context, fence
  Policy policy;                          // of the last one, which runs the script
  std::vector<std::string> lowered = {};  // fields of that in which the ceiling has left less than there was
};

// What bounds the runs of a stage, of what bounds the jobs of a context.
Ceiling ceiling_of(const Stage&, Ceiling);

// defaults: the operator's, over each profile. ceiling null: there is none. Error denied: names the field.
Result<StagedRuns> stage_runs(const Executor&, const PolicyRequest& defaults, const PolicyRequest& asked,
                              const Ceiling* ceiling, std::uint64_t timeout_ms);

}  // namespace mycojobs
