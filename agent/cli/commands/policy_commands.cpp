// mycojobs policy show, policy check FILE, policy diff A B
#include <sysexits.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/config/config_file.h"
#include "cli/executor_lookup.h"
#include "cli/terminal.h"
#include "executors/run_specs.h"
#include "model/codec.h"
#include "security/profiles.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string get_type_flag(const Invocation& call) { return call.get("type", "python"); }

// Returns the runs of a job with this script type, or the run of a profile, with the settings of this host.
Result<std::vector<Stage>> find_stages(const Invocation& call, const std::string& type) {
  MJ_TRY(found_executor, find_executor(call, type, "--type: "));
  std::vector<Stage> stages = found_executor.executor->stages();
  const auto profile_stage =
      std::find_if(stages.begin(), stages.end(), [&](const Stage& stage) { return stage.profile == type; });
  if (profile_stage != stages.end()) stages = {Stage(*profile_stage)};
  for (Stage& stage : stages) stage.policy = apply_request(stage.policy, make_operator_defaults(call.settings));
  return stages;
}

std::string unquote(std::string text) {
  return text.size() > 1 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

std::string to_upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

Result<Policy> read_applied_policy(const Policy& profile, const std::string& file) {
  MJ_TRY(policy_file, read_policy_file(file));
  if (!policy_file.ok()) return fail(Code::invalid, join(policy_file.problems));
  return apply_request(profile, policy_file.request);
}

}  // namespace

Result<int> policy_show_command(Invocation& call) {
  const std::string type = get_type_flag(call);
  MJ_TRY(stages, find_stages(call, type));
  const Ceiling ceiling = call.settings.ceilings.get(call.context());
  const auto effective = [&](const Stage& stage) {
    return apply_ceiling(stage.policy, {}, get_stage_ceiling(stage, ceiling)).policy;
  };
  if (call.json) {
    json out = {{"type", type},
                {"context", ceiling.context},
                {"profile", to_json(stages.back().policy)},
                {"ceiling", to_json(ceiling.max)},
                {"policy", to_json(effective(stages.back()))}};
    if (stages.size() > 1) out["compile"] = to_json(effective(stages.front()));
    return print_json(out);
  }
  // A script that is compiled first has two runs, each with a column.
  std::vector<Policy> policies;
  std::vector<std::string> heading{"FIELD"};
  for (const Stage& stage : stages) {
    policies.push_back(effective(stage));
    heading.push_back(stages.size() > 1 ? to_upper(stage.profile) : "WITHOUT ASKING");
  }
  heading.emplace_back("AT MOST");
  TableRows rows{std::move(heading)};
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    std::vector<std::string> row{std::string(to_string(field))};
    for (const Policy& policy : policies) row.push_back(unquote(format_policy_value(field, policy)));
    row.push_back(!has_ceiling(field) ? "true" : unquote(format_policy_value(field, ceiling.max)));
    rows.push_back(std::move(row));
  }
  print_table(rows);
  return 0;
}

Result<int> policy_check_command(Invocation& call) {
  const std::string type = get_type_flag(call);
  MJ_TRY(stages, find_stages(call, type));
  MJ_TRY(policy_file, read_policy_file(call.arguments.at(0)));
  const Ceiling ceiling = call.settings.ceilings.get(call.context());
  GrantedPolicy granted =
      apply_ceiling(stages.back().policy, policy_file.request, get_stage_ceiling(stages.back(), ceiling));
  std::vector<FieldProblem> refusals = std::move(policy_file.problems);
  refusals.insert(refusals.end(), granted.problems.begin(), granted.problems.end());
  if (auto result = check_warm(stages.back().profile, granted.policy); !result)
    refusals.push_back({"policy.warm.runs", result.error().message});
  if (call.json) {
    auto array = json::array();
    for (const FieldProblem& refusal : refusals)
      array.push_back({{"field", refusal.field}, {"message", refusal.message}});
    json out = {{"ok", refusals.empty()}, {"type", type}, {"context", ceiling.context}, {"refusals", std::move(array)}};
    if (refusals.empty()) out["policy"] = to_json(granted.policy);
    print_json(out);
  } else if (refusals.empty()) {
    TableRows rows{{"FIELD", "VALUE"}};
    for (std::size_t i = 0; i < kPolicyFields; ++i) {
      const auto field = static_cast<PolicyField>(i);
      rows.push_back({std::string(to_string(field)), unquote(format_policy_value(field, granted.policy))});
    }
    print_table(rows);
  } else {
    for (const FieldProblem& refusal : refusals)
      print_message(paint(OutputStyle::bad, "refused: ", true) + to_printable(refusal.message));
  }
  return refusals.empty() ? 0 : EX_DATAERR;
}

Result<int> policy_diff_command(Invocation& call) {
  MJ_TRY(stages, find_stages(call, get_type_flag(call)));
  MJ_TRY(old_policy, read_applied_policy(stages.back().policy, call.arguments.at(0)));
  MJ_TRY(new_policy, read_applied_policy(stages.back().policy, call.arguments.at(1)));
  const auto differences = diff(old_policy, new_policy);
  if (call.json) {
    auto array = json::array();
    for (const auto& difference : differences) {
      array.push_back({{"field", to_string(difference.field)},
                       {"before", to_json(old_policy).at(to_string(difference.field))},
                       {"after", to_json(new_policy).at(to_string(difference.field))}});
    }
    print_json(array);
  } else if (!differences.empty()) {
    TableRows rows{{"FIELD", call.arguments.at(0), call.arguments.at(1)}};
    for (const auto& difference : differences) {
      rows.push_back({std::string(to_string(difference.field)), unquote(difference.before), unquote(difference.after)});
    }
    print_table(rows);
  }
  return differences.empty() ? 0 : 1;
}

}  // namespace mycojobs
