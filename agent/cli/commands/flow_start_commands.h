// Reader of flow definition files (JSON or YAML) for `flow start` and other commands.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/invocation.h"
#include "flows/flow_plan.h"

namespace mycojobs {

// Result of read_flow_file(). `problems` has the errors of the definition with their lines.
struct ParsedFlowFile : ParsedPlan {
  std::vector<DocumentProblem> warnings;  // warnings of a valid plan (flows/flow_warnings.h), with their lines
};
// Reads a definition ("-": standard input) and replaces each job's `file:` by `script:` with the file's content
// (relative to the definition's folder). A missing script type is derived from the file name. Validates the definition
// and checks the policies of its jobs against the context's ceiling. check_types: also reports script types that no
// executor of this host runs and that look like a misspelling, unless the setting script_types contains them. Errors:
// not_found, io, too_large.
Result<ParsedFlowFile> read_flow_file(const Invocation&, const std::string& file, bool check_types = false);
// Reads the file that an argument names, like read_flow_file(). Problems are an error `invalid` with a line for each.
Result<FlowPlan> read_flow_file_argument(const Invocation&, std::size_t index = 0);
// Checks that all required inputs have values. Error invalid: the message names the missing inputs.
Result<void> check_inputs(const FlowPlan&);
// Returns one line for each problem: "pipeline.yaml:3:5: jobs.b.needs[0]: ...".
std::string format_problems(const std::string& file, std::vector<DocumentProblem>);

}  // namespace mycojobs
