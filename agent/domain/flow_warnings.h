// What a correct definition probably does not mean. Pure; any thread.
#pragma once

#include <vector>

#include "domain/flow_plan.h"

namespace mycojobs {

// Warns of each node that needs a node with an error node, but not that error node: such a node is skipped once the
// error node has handled the failure. Flows within the flow are included. Paths are those of a map of jobs
// ("jobs.report.needs"); lines are unknown.
std::vector<PlanProblem> warnings_of(const FlowPlan&);

}  // namespace mycojobs
