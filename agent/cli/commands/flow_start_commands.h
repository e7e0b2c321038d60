// Reader of flow definition files (JSON or YAML) for `flow start` and other commands.
#pragma once

#include <string>
#include <vector>

#include "cli/commands/command_table.h"
#include "flows/flow_plan.h"

namespace mycojobs {

// Reads a definition ("-": standard input) and replaces each job's `file:` by `script:` with the file's content
// (relative to the definition's folder). A missing script type is derived from the file name. Validates the definition
// and checks the policies of its jobs against the context's ceiling. Errors: not_found, io, too_large. `problems` lists
// errors of the definition with their lines. types: also report script types that no executor of this host runs and
// that look like a misspelling, unless the setting script_types contains them.
struct ParsedFlowFile : ParsedPlan {
  std::vector<PlanProblem> warnings;  // of a valid plan (flows/flow_warnings.h), with lines
};
Result<ParsedFlowFile> read_flow_file(const Invocation&, const std::string& file, bool types = false);
// Like read_flow_file(), but problems are returned as an error `invalid` with a line for each.
Result<FlowPlan> flow_file_argument(const Invocation&);
// Error invalid: required inputs are missing; the message names them.
Result<void> check_inputs(const FlowPlan&);
// Returns one line for each problem: "pipeline.yaml:3:5: jobs.b.needs[0]: ...".
std::string join_at(const std::string& file, std::vector<PlanProblem>);

}  // namespace mycojobs
