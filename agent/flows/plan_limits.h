// The operator's limits (jobs/job_limits.h) for the jobs of a plan.
#pragma once

#include "base/result.h"
#include "flows/flow_plan.h"
#include "jobs/job_limits.h"

namespace mycojobs {

// Checks all nodes of a plan and of its child flows. The policy of a node that runs on another supervisor is not
// checked, because the ceiling there applies. Errors as in jobs/job_limits.h, with the path in front: "jobs.a: ...",
// "jobs.c.flow: jobs.a: ...".
Result<void> check_jobs(const FlowPlan&, const JobLimits&);
Result<void> check_policy(const PlanNode&, const JobLimits&);  // for one node

}  // namespace mycojobs
