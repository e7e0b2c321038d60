// A flow from its definition in a file, JSON or YAML: `flow start`, and what other commands read of such a file.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "domain/flow_plan.h"

namespace mycojobs {

// Reads it ("-": standard input), puts the content of every job's `file:` in place as its `script:` (relative to the
// definition's folder; the script type follows from the file's name if there is none), and checks all of it, the
// policies of its jobs against the context's ceiling too. Errors: not_found, io, too_large. What is wrong with the
// definition is in `problems`, each with its line.
// types: a script type that no executor of this host runs and that is nearly one of theirs is a problem, too, unless
// the setting script_types names it.
struct FlowFileRead : PlanRead {
  std::vector<PlanProblem> warnings;  // of a plan without problems (domain/flow_warnings.h), each with its line
};
Result<FlowFileRead> read_flow_file(const Invocation&, const std::string& file, bool types = false);
// The same, where problems are an error: invalid, a line for each.
Result<FlowPlan> flow_file_argument(const Invocation&);
// Error invalid: inputs that it requires are not given; it names them.
Result<void> check_inputs(const FlowPlan&);
// A line for each: "pipeline.yaml:3:5: jobs.b.needs[0]: ...".
std::string join_at(const std::string& file, std::vector<PlanProblem>);

}  // namespace mycojobs
