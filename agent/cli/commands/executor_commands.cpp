// mycojobs executor list | check, plugin list | check
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/executor_contract.h"
#include "cli/executor_lookup.h"
#include "cli/executor_trial.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using ContractVerdict = ContractResult::Verdict;

std::string_view to_string(ContractVerdict verdict) {
  return verdict == ContractVerdict::held ? "held" : verdict == ContractVerdict::failed ? "failed" : "no sample";
}

// Prints the cases and the required behaviour of their samples. Returns the exit code.
int print_cases(const Invocation& call) {
  auto cases = nlohmann::json::array();
  TableRows rows{{"CASE", "ITS SAMPLE"}};
  for (const ContractCase& contract_case : contract_cases()) {
    cases.push_back({{"case", contract_case.name}, {"sample", contract_case.sample}});
    rows.push_back({std::string(contract_case.name), std::string(contract_case.sample)});
  }
  print_listing(call, cases, rows);
  if (!call.json) print_message("give --samples FOLDER: one script for each case, named after it");
  return 0;
}

// Runs the contract suite and prints its results. Returns the exit code: 0, or 1 if a case failed.
Result<int> run_contract(const Invocation& call, const Executor& executor, const std::string& script_type,
                         Sandbox& sandbox, const std::string& samples) {
  const auto print_contract_result = [&call](const ContractResult& result) {
    if (call.json) return;
    const OutputStyle style = result.verdict == ContractVerdict::held     ? OutputStyle::good
                              : result.verdict == ContractVerdict::failed ? OutputStyle::bad
                                                                          : OutputStyle::faint;
    print(paint(style, std::string(to_string(result.verdict)), false) + "  " + result.name +
          (result.detail.empty() ? "" : ": " + to_printable(result.detail)) + "\n");
  };
  MJ_TRY(results, check_contract(executor, script_type, sandbox, samples, print_contract_result));
  if (call.json) {
    auto array = nlohmann::json::array();
    for (const auto& entry : results)
      array.push_back({{"case", entry.name}, {"verdict", to_string(entry.verdict)}, {"detail", entry.detail}});
    print_json(array);
  }
  const auto count = [&results](ContractVerdict verdict) {
    return std::count_if(results.begin(), results.end(), [&](const auto& entry) { return entry.verdict == verdict; });
  };
  print_message(std::to_string(count(ContractVerdict::held)) + " held, " +
                std::to_string(count(ContractVerdict::failed)) + " failed, " +
                std::to_string(count(ContractVerdict::no_sample)) + " without a sample");
  return count(ContractVerdict::failed) > 0 ? 1 : 0;
}

}  // namespace

Result<int> executor_list_command(Invocation& call) {
  auto array = json::array();
  TableRows rows{{"EXECUTOR", "SCRIPT TYPES", "STATE", "WHAT RUNS THE SCRIPTS"}};
  ExecutorTrials trials(call);
  for (const auto& executor : call.dependencies.make_executors(call.settings)) {
    const auto probe = executor->probe();
    const std::string failure = probe ? trials.find_failure(*executor) : "";
    const std::string types = fmt::format("{}", fmt::join(executor->script_types(), " "));
    const std::string description = !probe ? probe.error().message : failure.empty() ? *probe : *probe + "; " + failure;
    auto stages = json::array();
    for (const Stage& stage : executor->stages())
      stages.push_back({{"profile", stage.profile}, {"policy", to_json(stage.policy)}});
    array.push_back({{"name", executor->name()},
                     {"script_types", executor->script_types()},
                     {"works", probe.has_value() && failure.empty()},
                     {"about", to_utf8(description)},
                     {"stages", std::move(stages)}});
    const char* state = !probe ? "missing" : failure.empty() ? "works" : "fails";
    rows.push_back({std::string(executor->name()), types, state, to_printable(description)});
  }
  return print_listing(call, array, rows);
}

Result<int> executor_check_command(Invocation& call) {
  MJ_TRY(found_executor, find_executor(call, call.arguments.at(0), ""));
  if (!call.has("samples")) return print_cases(call);
  MJ_TRY(description, found_executor.executor->probe());
  print_message(description);
  MJ_TRY(sandbox, call.dependencies.start_sandbox(call.settings, {}, -1));
  return run_contract(call, *found_executor.executor, found_executor.type, *sandbox, call.get("samples"));
}

namespace {

using plugin::PluginReport;
using plugin::PluginState;

json to_json(const PluginReport& report) {
  return {{"file", report.file},
          {"name", report.name},
          {"version", report.version},
          {"abi", report.abi},
          {"script_types", report.script_types},
          {"state", plugin::to_string(report.state)},
          {"reason", report.reason}};
}

}  // namespace

Result<int> plugin_list_command(Invocation& call) {
  const auto reports = call.dependencies.list_plugins(call.settings);
  if (reports.empty() && !call.json) {
    const std::string& folder = call.settings.plugins_dir;
    print_message("no plugins in " + (folder.empty() ? call.settings.libexec_dir + "/plugins" : folder));
    return 0;
  }
  json array = json::array();
  TableRows rows{{"FILE", "NAME", "VERSION", "ABI", "SCRIPT TYPES", "STATE", "REASON"}};
  for (const PluginReport& report : reports) {
    array.push_back(to_json(report));
    const bool is_loaded = !report.name.empty();
    rows.push_back({std::filesystem::path(report.file).filename().string(), is_loaded ? report.name : "-",
                    is_loaded ? report.version : "-", is_loaded ? std::to_string(report.abi) : "-",
                    is_loaded ? fmt::format("{}", fmt::join(report.script_types, " ")) : "-",
                    std::string(plugin::to_string(report.state)), report.reason});
  }
  return print_listing(call, array, rows);
}

Result<int> plugin_check_command(Invocation& call) {
  const plugin::PluginCheck check_result = call.dependencies.check_plugin(call.settings, call.arguments.front());
  if (call.json) {
    json array = json::array();
    for (const auto& row : check_result.rows)
      array.push_back({{"name", row.name}, {"ok", row.ok}, {"detail", row.detail}});
    print_json({{"file", call.arguments.front()}, {"ok", check_result.ok()}, {"checks", std::move(array)}});
  } else {
    TableRows rows{{"CHECK", "", "DETAIL"}};
    for (const auto& row : check_result.rows) rows.push_back({row.name, row.ok ? "ok" : "WRONG", row.detail});
    print_table(rows);
  }
  const std::string samples = call.get("samples");
  const auto executor = call.dependencies.create_plugin_executor(check_result);
  if (!check_result.ok() || samples.empty() || !executor) return check_result.ok() ? 0 : EX_DATAERR;
  MJ_TRY(sandbox, call.dependencies.start_sandbox(call.settings, {}, -1));
  return run_contract(call, *executor, executor->script_types().front(), *sandbox, samples);
}

}  // namespace mycojobs
