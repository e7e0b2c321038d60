// The table of commands. Parsing, help, completion and the manual's completeness test are derived from it.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/invocation.h"

namespace mycojobs {

// A row of the table of commands.
struct Command {
  std::string_view name;  // "job list"
  std::string_view help;
  std::string_view arguments;  // "FILE", "[FILE]", "A B", "FILE...", "": names separated by spaces; [] is optional
  std::vector<FlagRow> flags;
  Result<int> (*run)(Invocation&);  // returns the exit code, or an error to be printed
  bool is_service = false;          // a service logs its actions; other commands log only problems
};

const std::vector<Command>& commands();

}  // namespace mycojobs
