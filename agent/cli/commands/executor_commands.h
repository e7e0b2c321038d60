// Lookup of the executor that a command line names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cli/commands/command_table.h"

namespace mycojobs {

struct FoundExecutor {
  std::unique_ptr<Executor> executor;
  std::string type;  // the named script type, or the first type of the executor
};

// Finds an executor by script type, by its name, or by the name of one of its profiles (v.compile). label: prefix of
// the error, such as "--type: ". Error invalid: the name is unknown; the message lists the known names.
Result<FoundExecutor> find_executor(const Invocation&, std::string_view named, std::string_view label);

// Finds an executor by script type only. Error unsupported: the type is unknown.
Result<std::unique_ptr<Executor>> executor_of_type(const Invocation&, std::string_view type);

}  // namespace mycojobs
