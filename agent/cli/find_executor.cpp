#include "cli/find_executor.h"

#include <algorithm>

#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

std::string nothing_runs(std::string_view named, const std::vector<std::string>& types) {
  const std::vector<std::string_view> known(types.begin(), types.end());
  std::string list;
  for (const auto& each : types) list += (list.empty() ? "" : ", ") + each;
  const std::string meant = did_you_mean(named, known);
  return "no executor here runs " + shown(named, 80) + "; there is: " + list +
         (meant.empty()
              ? "; [executors.<name>] in the configuration adds one for any program (docs/executors/command.md)"
              : meant);
}

}  // namespace

Result<FoundExecutor> find_executor(const Invocation& call, std::string_view named, std::string_view label) {
  std::vector<std::string> known;
  for (auto& executor : call.parts.executors(call.settings)) {
    const auto types = executor->script_types();
    const auto stages = executor->stages();
    const bool is_type = std::find(types.begin(), types.end(), named) != types.end();
    const bool is_profile =
        std::any_of(stages.begin(), stages.end(), [named](const Stage& each) { return each.profile == named; });
    if (is_type || is_profile || executor->name() == named)
      return FoundExecutor{std::move(executor), is_type ? std::string(named) : types.front()};
    known.insert(known.end(), types.begin(), types.end());
  }
  return fail(Code::invalid, std::string(label) + nothing_runs(named, known));
}

Result<std::unique_ptr<Executor>> executor_of_type(const Invocation& call, std::string_view type) {
  std::vector<std::string> known;
  for (auto& executor : call.parts.executors(call.settings)) {
    const auto types = executor->script_types();
    if (std::find(types.begin(), types.end(), type) != types.end()) return std::move(executor);
    known.insert(known.end(), types.begin(), types.end());
  }
  return fail(Code::unsupported, nothing_runs(type, known));
}

}  // namespace mycojobs
