// What a correct definition probably does not mean. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "domain/flow_plan.h"

namespace mycojobs {

// Warns of each node that needs a node with an error node, but not that error node: such a node is skipped once the
// error node has handled the failure. Flows within the flow are included. definition: that of the plan; a path is
// "jobs.report.needs" where its jobs are a map, and "jobs[3].needs" where they are a list. Lines are unknown.
std::vector<PlanProblem> warnings_of(const FlowPlan&, const nlohmann::json& definition);

}  // namespace mycojobs
