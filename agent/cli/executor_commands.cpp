// mycojobs executor list, mycojobs executor check
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/contract_report.h"
#include "cli/find_executor.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

Result<int> list_executors(const Invocation& call) {
  auto rows = json::array();
  std::vector<std::vector<std::string>> table{{"EXECUTOR", "SCRIPT TYPES", "STATE", "WHAT RUNS THE SCRIPTS"}};
  for (const auto& executor : call.parts.executors(call.settings)) {
    const auto probed = executor->probe();
    std::string types;
    for (const auto& type : executor->script_types()) types += (types.empty() ? "" : " ") + type;
    const std::string about = probed ? *probed : probed.error().message;
    auto stages = json::array();
    for (const Stage& stage : executor->stages())
      stages.push_back({{"profile", stage.profile}, {"policy", to_json(stage.policy)}});
    rows.push_back({{"name", executor->name()},
                    {"script_types", executor->script_types()},
                    {"works", probed.has_value()},
                    {"about", to_utf8(about)},
                    {"stages", std::move(stages)}});
    table.push_back({std::string(executor->name()), types, probed ? "works" : "missing", printable(about)});
  }
  if (call.json) {
    print(dump_json(rows, 2) + "\n");
  } else {
    print_table(table);
  }
  return 0;
}

Result<int> check_executor(const Invocation& call) {
  MJ_TRY(found, find_executor(call, call.arguments.at(0), ""));
  if (!call.has("samples")) return report_cases(call);
  MJ_TRY(about, found.executor->probe());
  say(about);
  MJ_TRY(sandbox, call.parts.sandbox(call.settings, {}, -1));
  return report_contract(call, *found.executor, found.type, *sandbox, call.get("samples"));
}

}  // namespace

int executor_list_command(Invocation& call) { return finish(list_executors(call)); }
int executor_check_command(Invocation& call) { return finish(check_executor(call)); }

}  // namespace mycojobs
