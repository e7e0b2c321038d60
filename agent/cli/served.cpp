#include "cli/served.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/find_executor.h"
#include "cli/opened.h"
#include "domain/codec.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

void collect(const FlowPlan& plan, std::set<std::string>& types) {
  for (const PlanNode& node : plan.nodes) {
    const bool is_run = (node.kind == NodeKind::job || node.kind == NodeKind::each) && !node.each;
    if (is_run && node.supervisor_url.empty()) types.insert(node.job.script_type);
    if (node.child.empty()) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const PlanRead read = read_plan(*child); read.plan) collect(*read.plan, types);
  }
}

}  // namespace

std::set<std::string> script_types_of(const FlowPlan& plan) {
  std::set<std::string> types;
  collect(plan, types);
  return types;
}

Result<void> runs_here(const Invocation& call, const std::string& type) {
  MJ_TRY(executor, executor_of_type(call, type));
  if (auto works = executor->probe(); !works) return fail(Code::unsupported, works.error().message);
  return {};
}

Result<void> check_served(const Invocation& call, Store& store, const std::set<std::string>& types) {
  if (!call.settings.redis.empty()) return {};
  MJ_TRY(runners, store.runners(context_of(call)));
  std::erase_if(runners, [](const RunnerInfo& each) { return presence(each) != Presence::live; });
  for (const std::string& type : types) {
    if (std::any_of(runners.begin(), runners.end(),
                    [&](const RunnerInfo& each) { return serves(each, queue_key(type)); }))
      continue;
    MJ_CHECK(runs_here(call, type));
    if (!runners.empty())
      return fail(Code::unsupported, "the mycojobs that runs on " + call.settings.state_dir +
                                         " does not take jobs of type " + type +
                                         ", which this host can run: stop it and start it with the same "
                                         "configuration, or give another --state-dir");
  }
  return {};
}

}  // namespace mycojobs
