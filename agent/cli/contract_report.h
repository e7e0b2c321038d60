// The contract suite as a command shows it.
#pragma once

#include <string>

#include "cli/commands.h"
#include "cli/contract.h"

namespace mycojobs {

// The cases, and what their samples have to do. The exit code.
int report_cases(const Invocation&);
// Returns the exit code: 0, or 1 if a case failed.
Result<int> report_contract(const Invocation&, const Executor&, const std::string& script_type, Sandbox&,
                            const std::string& samples);

}  // namespace mycojobs
