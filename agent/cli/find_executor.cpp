#include "cli/find_executor.h"

#include <algorithm>

#include "domain/utf8.h"

namespace mycojobs {

Result<FoundExecutor> find_executor(const Invocation& call, std::string_view named, std::string_view label) {
  std::string known;
  for (auto& executor : call.parts.executors(call.settings)) {
    const auto types = executor->script_types();
    const auto stages = executor->stages();
    const bool is_type = std::find(types.begin(), types.end(), named) != types.end();
    const bool is_profile =
        std::any_of(stages.begin(), stages.end(), [named](const Stage& each) { return each.profile == named; });
    if (is_type || is_profile || executor->name() == named)
      return FoundExecutor{std::move(executor), is_type ? std::string(named) : types.front()};
    for (const auto& each : types) known += (known.empty() ? "" : ", ") + each;
  }
  return fail(Code::invalid, std::string(label) + "no executor here runs " + shown(named, 80) + "; there is: " + known);
}

}  // namespace mycojobs
