// mycojobs plugin list, plugin check FILE
#include <sysexits.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/contract_report.h"
#include "cli/terminal.h"
#include "domain/codec.h"

namespace mycojobs {
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
          {"state", plugin::word(report.state)},
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
    say("no plugins in " + (folder.empty() ? call.settings.libexec_dir + "/plugins" : folder));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"FILE", "NAME", "VERSION", "ABI", "SCRIPT TYPES", "STATE", "REASON"}};
  for (const PluginReport& report : reports) {
    const bool known = !report.name.empty();
    rows.push_back({std::filesystem::path(report.file).filename().string(), known ? report.name : "-",
                    known ? report.version : "-", known ? std::to_string(report.abi) : "-",
                    known ? joined(report.script_types) : "-", std::string(plugin::word(report.state)), report.reason});
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
