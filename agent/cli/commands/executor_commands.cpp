#include "cli/commands/executor_commands.h"

#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands/command_table.h"
#include "cli/executor_contract.h"
#include "cli/executor_trial.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

std::string nothing_runs(std::string_view named, const std::vector<std::string>& types) {
  const std::vector<std::string_view> known(types.begin(), types.end());
  std::string list;
  for (const auto& each : types) list += (list.empty() ? "" : ", ") + each;
  const std::string meant = did_you_mean(named, known);
  return "no executor here runs " + excerpt(named, 80) + "; there is: " + list +
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

namespace {

// Output of the contract suite.

using ContractVerdict = ContractResult::Verdict;

std::string_view to_string(ContractVerdict verdict) {
  return verdict == ContractVerdict::held ? "held" : verdict == ContractVerdict::failed ? "failed" : "no sample";
}

// Prints the cases and the required behaviour of their samples. Returns the exit code.
int report_cases(const Invocation& call) {
  auto cases = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"CASE", "ITS SAMPLE"}};
  for (const auto& each : contract_cases()) {
    cases.push_back({{"case", each.name}, {"sample", each.sample}});
    rows.push_back({std::string(each.name), std::string(each.sample)});
  }
  if (call.json) {
    print(dump_json(cases, 2) + "\n");
  } else {
    print_table(rows);
    print_message("give --samples FOLDER: one script for each case, named after it");
  }
  return 0;
}

// Returns the exit code: 0, or 1 if a case failed.
Result<int> report_contract(const Invocation& call, const Executor& executor, const std::string& script_type,
                            Sandbox& sandbox, const std::string& samples) {
  const auto tell = [&call](const ContractResult& result) {
    if (call.json) return;
    const OutputStyle tone = result.verdict == ContractVerdict::held     ? OutputStyle::good
                             : result.verdict == ContractVerdict::failed ? OutputStyle::bad
                                                                         : OutputStyle::faint;
    print(paint(tone, std::string(to_string(result.verdict)), false) + "  " + result.name +
          (result.detail.empty() ? "" : ": " + printable(result.detail)) + "\n");
  };
  MJ_TRY(results, check_contract(executor, script_type, sandbox, samples, tell));
  if (call.json) {
    auto rows = nlohmann::json::array();
    for (const auto& each : results)
      rows.push_back({{"case", each.name}, {"verdict", to_string(each.verdict)}, {"detail", each.detail}});
    print(dump_json(rows, 2) + "\n");
  }
  const auto count = [&results](ContractVerdict verdict) {
    return std::count_if(results.begin(), results.end(), [&](const auto& each) { return each.verdict == verdict; });
  };
  print_message(std::to_string(count(ContractVerdict::held)) + " held, " +
                std::to_string(count(ContractVerdict::failed)) + " failed, " +
                std::to_string(count(ContractVerdict::no_sample)) + " without a sample");
  return count(ContractVerdict::failed) > 0 ? 1 : 0;
}

}  // namespace

// mycojobs executor list, mycojobs executor check

namespace {

using nlohmann::json;

Result<int> list_executors(const Invocation& call) {
  auto rows = json::array();
  std::vector<std::vector<std::string>> table{{"EXECUTOR", "SCRIPT TYPES", "STATE", "WHAT RUNS THE SCRIPTS"}};
  ExecutorTrials trials(call);
  for (const auto& executor : call.parts.executors(call.settings)) {
    const auto probed = executor->probe();
    const std::string failure = probed ? trials.failure_of(*executor) : "";
    std::string types;
    for (const auto& type : executor->script_types()) types += (types.empty() ? "" : " ") + type;
    const std::string about = !probed ? probed.error().message : failure.empty() ? *probed : *probed + "; " + failure;
    auto stages = json::array();
    for (const Stage& stage : executor->stages())
      stages.push_back({{"profile", stage.profile}, {"policy", to_json(stage.policy)}});
    rows.push_back({{"name", executor->name()},
                    {"script_types", executor->script_types()},
                    {"works", probed.has_value() && failure.empty()},
                    {"about", to_utf8(about)},
                    {"stages", std::move(stages)}});
    const char* state = !probed ? "missing" : failure.empty() ? "works" : "fails";
    table.push_back({std::string(executor->name()), types, state, printable(about)});
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
  print_message(about);
  MJ_TRY(sandbox, call.parts.sandbox(call.settings, {}, -1));
  return report_contract(call, *found.executor, found.type, *sandbox, call.get("samples"));
}

}  // namespace

int executor_list_command(Invocation& call) { return finish(list_executors(call)); }
int executor_check_command(Invocation& call) { return finish(check_executor(call)); }

// mycojobs plugin list, plugin check FILE

namespace {

using nlohmann::json;
using plugin::PluginReport;
using plugin::PluginState;

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

json to_json(const PluginReport& report) {
  return {{"file", report.file},
          {"name", report.name},
          {"version", report.version},
          {"abi", report.abi},
          {"script_types", report.script_types},
          {"state", plugin::to_string(report.state)},
          {"reason", report.reason}};
}

int list(const Invocation& call) {
  const auto reports = call.parts.plugins(call.settings);
  if (call.json) {
    json all = json::array();
    for (const PluginReport& report : reports) all.push_back(to_json(report));
    print(dump_json(all, 2) + "\n");
    return 0;
  }
  if (reports.empty()) {
    const std::string& folder = call.settings.plugins_dir;
    print_message("no plugins in " + (folder.empty() ? call.settings.libexec_dir + "/plugins" : folder));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"FILE", "NAME", "VERSION", "ABI", "SCRIPT TYPES", "STATE", "REASON"}};
  for (const PluginReport& report : reports) {
    const bool known = !report.name.empty();
    rows.push_back({std::filesystem::path(report.file).filename().string(), known ? report.name : "-",
                    known ? report.version : "-", known ? std::to_string(report.abi) : "-",
                    known ? joined(report.script_types) : "-", std::string(plugin::to_string(report.state)),
                    report.reason});
  }
  print_table(rows);
  return 0;
}

Result<int> check_plugin(const Invocation& call) {
  const plugin::PluginCheck done = call.parts.check_plugin(call.settings, call.arguments.front());
  if (call.json) {
    json rows = json::array();
    for (const auto& row : done.rows) rows.push_back({{"name", row.name}, {"ok", row.ok}, {"detail", row.detail}});
    print(dump_json({{"file", call.arguments.front()}, {"ok", done.ok()}, {"checks", std::move(rows)}}, 2) + "\n");
  } else {
    std::vector<std::vector<std::string>> rows{{"CHECK", "", "DETAIL"}};
    for (const auto& row : done.rows) rows.push_back({row.name, row.ok ? "ok" : "WRONG", row.detail});
    print_table(rows);
  }
  const std::string samples = call.get("samples");
  const auto executor = call.parts.executor_of_plugin(done);
  if (!done.ok() || samples.empty() || !executor) return done.ok() ? 0 : EX_DATAERR;
  MJ_TRY(sandbox, call.parts.sandbox(call.settings, {}, -1));
  return report_contract(call, *executor, executor->script_types().front(), *sandbox, samples);
}

}  // namespace

int plugin_list_command(Invocation& call) { return list(call); }
int plugin_check_command(Invocation& call) { return finish(check_plugin(call)); }

}  // namespace mycojobs
