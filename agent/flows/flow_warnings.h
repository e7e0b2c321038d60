// Warnings about valid definitions that probably have an unintended meaning. Pure and thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "flows/flow_plan.h"

namespace mycojobs {

// Warns of each node that needs a node with an error node, but not that error node: such a node is skipped once the
// error node has handled the failure. Child flows within the flow are included. `definition` is the definition of the
// plan. A path is "jobs.report.needs" if the jobs are a map, and "jobs[3].needs" if they are a list. Lines are unknown.
std::vector<DocumentProblem> find_warnings(const FlowPlan&, const nlohmann::json& definition);

}  // namespace mycojobs
