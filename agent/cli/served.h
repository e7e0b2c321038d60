// Whether anybody runs what is about to be submitted. On the embedded default nobody else will come: what no runner
// there takes would wait for ever.
#pragma once

#include <set>
#include <string>

#include "cli/commands.h"
#include "domain/flow_plan.h"
#include "mycojobs/store.h"

namespace mycojobs {

// The script types of a plan's jobs, and of the flows in it; those of jobs that another supervisor runs aside.
std::set<std::string> script_types_of(const FlowPlan&);

// Error unsupported: no executor of this host runs jobs of the type; says why and the remedy, as the executor itself
// does.
Result<void> runs_here(const Invocation&, const std::string& type);

// With a Redis named: fine, others may serve it. Else error unsupported for the first type that no live runner takes,
// unless it works here: then a runner is just starting.
Result<void> check_served(const Invocation&, Store&, const std::set<std::string>& types);

}  // namespace mycojobs
