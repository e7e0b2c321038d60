#include "cli/executor_lookup.h"

#include <algorithm>

#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

std::string make_unknown_executor_message(std::string_view name, const std::vector<std::string>& types) {
  const std::vector<std::string_view> names(types.begin(), types.end());
  std::string list;
  for (const auto& type : types) list += (list.empty() ? "" : ", ") + type;
  const std::string suggestion = did_you_mean(name, names);
  return "no executor here runs " + excerpt(name, 80) + "; there is: " + list +
         (suggestion.empty()
              ? "; [executors.<name>] in the configuration adds one for any program (docs/executors/command.md)"
              : suggestion);
}

}  // namespace

Result<FoundExecutor> find_executor(const Invocation& call, std::string_view name, std::string_view label) {
  std::vector<std::string> known_types;
  for (auto& executor : call.dependencies.make_executors(call.settings)) {
    const auto types = executor->script_types();
    const auto stages = executor->stages();
    const bool is_type = std::find(types.begin(), types.end(), name) != types.end();
    const bool is_profile =
        std::any_of(stages.begin(), stages.end(), [name](const Stage& stage) { return stage.profile == name; });
    if (is_type || is_profile || executor->name() == name)
      return FoundExecutor{std::move(executor), is_type ? std::string(name) : types.front()};
    known_types.insert(known_types.end(), types.begin(), types.end());
  }
  return fail(Code::invalid, std::string(label) + make_unknown_executor_message(name, known_types));
}

Result<std::unique_ptr<Executor>> find_executor_of_type(const Invocation& call, std::string_view type) {
  std::vector<std::string> known_types;
  for (auto& executor : call.dependencies.make_executors(call.settings)) {
    const auto types = executor->script_types();
    if (std::find(types.begin(), types.end(), type) != types.end()) return std::move(executor);
    known_types.insert(known_types.end(), types.begin(), types.end());
  }
  return fail(Code::unsupported, make_unknown_executor_message(type, known_types));
}

}  // namespace mycojobs
