// The executor that a command line names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace mycojobs {

struct FoundExecutor {
  std::unique_ptr<Executor> executor;
  std::string type;  // the script type that was named; otherwise its first one
};

// By script type, by the executor's name, or by the name of one of its profiles (v.compile). label: what stands in
// front of the error, such as "--type: ". Error invalid: there is none of that name; lists those there are.
Result<FoundExecutor> find_executor(const Invocation&, std::string_view named, std::string_view label);

// By script type alone. Error unsupported, as above.
Result<std::unique_ptr<Executor>> executor_of_type(const Invocation&, std::string_view type);

}  // namespace mycojobs
