// mycojobs policy show, policy check FILE, policy diff A B
#include <sysexits.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/command_table.h"
#include "cli/commands/executor_commands.h"
#include "cli/config/config_file.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "executors/run_specs.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string type_of(const Invocation& call) { return call.get("type", "python"); }

// Returns the runs of a job with this script type, or the run of a profile, with the settings of this host.
Result<std::vector<Stage>> stages_of(const Invocation& call, const std::string& type) {
  MJ_TRY(found, find_executor(call, type, "--type: "));
  std::vector<Stage> stages = found.executor->stages();
  const auto named =
      std::find_if(stages.begin(), stages.end(), [&](const Stage& each) { return each.profile == type; });
  if (named != stages.end()) stages = {Stage(*named)};
  for (Stage& each : stages) each.policy = apply_request(each.policy, operator_defaults(call.settings));
  return stages;
}

std::string bare(std::string text) {
  return text.size() > 1 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

Result<int> show_policy(const Invocation& call) {
  const std::string type = type_of(call);
  MJ_TRY(stages, stages_of(call, type));
  const Ceiling ceiling = call.settings.ceilings.of(context_of(call));
  const auto effective = [&](const Stage& each) {
    return apply_ceiling(each.policy, {}, ceiling_of(each, ceiling)).policy;
  };
  if (call.json) {
    json out = {{"type", type},
                {"context", ceiling.context},
                {"profile", to_json(stages.back().policy)},
                {"ceiling", to_json(ceiling.max)},
                {"policy", to_json(effective(stages.back()))}};
    if (stages.size() > 1) out["compile"] = to_json(effective(stages.front()));
    print(dump_json(out, 2) + "\n");
    return 0;
  }
  // A script that is compiled first has two runs, each with a column.
  std::vector<Policy> runs;
  std::vector<std::string> head{"FIELD"};
  for (const Stage& each : stages) {
    runs.push_back(effective(each));
    head.push_back(stages.size() > 1 ? upper(each.profile) : "WITHOUT ASKING");
  }
  head.emplace_back("AT MOST");
  std::vector<std::vector<std::string>> rows{std::move(head)};
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    std::vector<std::string> row{std::string(to_string(field))};
    for (const Policy& each : runs) row.push_back(bare(value_text(field, each)));
    row.push_back(!has_ceiling(field) ? "true" : bare(value_text(field, ceiling.max)));
    rows.push_back(std::move(row));
  }
  print_table(rows);
  return 0;
}

Result<int> check_policy(const Invocation& call) {
  const std::string type = type_of(call);
  MJ_TRY(stages, stages_of(call, type));
  MJ_TRY(read, read_policy_file(call.arguments.at(0)));
  const Ceiling ceiling = call.settings.ceilings.of(context_of(call));
  GrantedPolicy combined = apply_ceiling(stages.back().policy, read.request, ceiling_of(stages.back(), ceiling));
  std::vector<FieldProblem> refusals = std::move(read.problems);
  refusals.insert(refusals.end(), combined.problems.begin(), combined.problems.end());
  if (auto warm = check_warm(stages.back().profile, combined.policy); !warm)
    refusals.push_back({"policy.warm.runs", warm.error().message});
  if (call.json) {
    auto list = json::array();
    for (const FieldProblem& each : refusals) list.push_back({{"field", each.field}, {"message", each.message}});
    json out = {{"ok", refusals.empty()}, {"type", type}, {"context", ceiling.context}, {"refusals", std::move(list)}};
    if (refusals.empty()) out["policy"] = to_json(combined.policy);
    print(dump_json(out, 2) + "\n");
  } else if (refusals.empty()) {
    std::vector<std::vector<std::string>> rows{{"FIELD", "VALUE"}};
    for (std::size_t i = 0; i < kPolicyFields; ++i) {
      const auto field = static_cast<PolicyField>(i);
      rows.push_back({std::string(to_string(field)), bare(value_text(field, combined.policy))});
    }
    print_table(rows);
  } else {
    for (const FieldProblem& each : refusals)
      print_message(paint(OutputStyle::bad, "refused: ", true) + printable(each.message));
  }
  return refusals.empty() ? 0 : EX_DATAERR;
}

Result<Policy> policy_of(const Policy& profile, const std::string& file) {
  MJ_TRY(read, read_policy_file(file));
  if (!read.ok()) return fail(Code::invalid, join(read.problems));
  return apply_request(profile, read.request);
}

Result<int> compare(const Invocation& call) {
  MJ_TRY(stages, stages_of(call, type_of(call)));
  MJ_TRY(before, policy_of(stages.back().policy, call.arguments.at(0)));
  MJ_TRY(after, policy_of(stages.back().policy, call.arguments.at(1)));
  const auto differences = diff(before, after);
  if (call.json) {
    auto list = json::array();
    for (const auto& each : differences) {
      list.push_back({{"field", to_string(each.field)},
                      {"before", to_json(before).at(to_string(each.field))},
                      {"after", to_json(after).at(to_string(each.field))}});
    }
    print(dump_json(list, 2) + "\n");
  } else if (!differences.empty()) {
    std::vector<std::vector<std::string>> rows{{"FIELD", call.arguments.at(0), call.arguments.at(1)}};
    for (const auto& each : differences) {
      rows.push_back({std::string(to_string(each.field)), bare(each.before), bare(each.after)});
    }
    print_table(rows);
  }
  return differences.empty() ? 0 : 1;
}

}  // namespace

int policy_show_command(Invocation& call) { return finish(show_policy(call)); }
int policy_check_command(Invocation& call) { return finish(check_policy(call)); }
int policy_diff_command(Invocation& call) { return finish(compare(call)); }

}  // namespace mycojobs
