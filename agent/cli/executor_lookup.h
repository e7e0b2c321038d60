// Lookup of the executor for a script type or a name from the command line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cli/invocation.h"

namespace mycojobs {

struct FoundExecutor {
  std::unique_ptr<Executor> executor;
  std::string type;  // the given script type, or the first type of the executor
};

// Finds an executor by script type, by the name of the executor, or by the name of one of its profiles (v.compile).
// label: prefix of the error, such as "--type: ". Error invalid: the name is unknown; the message lists the known
// names.
Result<FoundExecutor> find_executor(const Invocation&, std::string_view name, std::string_view label);

// Finds an executor by script type only. Error unsupported: the type is unknown.
Result<std::unique_ptr<Executor>> find_executor_of_type(const Invocation&, std::string_view type);

}  // namespace mycojobs
