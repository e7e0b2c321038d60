#include "executors/executor_table.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "executors/command/command_executor.h"
#include "executors/lua/lua_executor.h"
#include "executors/native/native_executor.h"
#include "executors/plugin/plugin_executor.h"
#include "executors/python/python_executor.h"
#include "executors/v/v_executor.h"

namespace mycojobs {
namespace {

using Table = std::vector<std::unique_ptr<Executor>>;

// Adds the executor, or replaces a built-in executor of the same name.
void add_command(Table& table, const CommandSettings& command) {
  const auto has_name = [&](const auto& executor) { return executor->name() == command.name; };
  const auto entry = std::find_if(table.begin(), table.end(), has_name);
  auto executor = std::make_unique<CommandExecutor>(command);
  if (entry == table.end()) {
    table.push_back(std::move(executor));
  } else {
    *entry = std::move(executor);
  }
}

Table create_built_in_executors(const ExecutorSettings& settings) {
  Table table;
  table.push_back(
      std::make_unique<PythonExecutor>(settings.libexec_dir + "/mycojobs-pyhost", settings.python, settings.state_dir));
  const auto lua = std::make_shared<LuaHost>(settings.libexec_dir + "/mycojobs-luahost");
  for (const char* name : {"sal", "osis"}) table.push_back(std::make_unique<LuaExecutor>(name, lua));
  table.push_back(std::make_unique<NativeExecutor>(settings.state_dir));
  table.push_back(std::make_unique<VExecutor>(settings.v_compiler, settings.v_flags, settings.state_dir));
  for (const CommandSettings& command : settings.commands) add_command(table, command);
  return table;
}

std::string get_plugin_host(const ExecutorSettings& settings) {
  return settings.libexec_dir + "/" + plugin::kHostProgram;
}

// Built-in names are reserved first, so a plugin cannot replace a built-in executor.
plugin::PluginFolder load_folder(const ExecutorSettings& settings, const Table& table) {
  std::set<std::string> names;
  std::set<std::string> types;
  for (const auto& executor : table) {
    names.emplace(executor->name());
    for (std::string& type : executor->script_types()) types.insert(std::move(type));
  }
  const std::string folder = settings.plugins_dir.empty() ? settings.libexec_dir + "/plugins" : settings.plugins_dir;
  return plugin::load_plugins(folder, get_plugin_host(settings), std::move(names), std::move(types), settings.clock);
}

}  // namespace

Table create_executors(const ExecutorSettings& settings) {
  auto table = create_built_in_executors(settings);
  plugin::PluginFolder folder = load_folder(settings, table);
  for (const plugin::PluginReport& report : folder.reports) {
    if (report.state == plugin::PluginState::refused)
      log(LogLevel::warn, "plugin", "{} is refused: {}", report.file, report.reason);
  }
  for (auto& client : folder.loaded) table.push_back(std::make_unique<plugin::PluginExecutor>(std::move(client)));
  return table;
}

std::vector<plugin::PluginReport> list_plugins(const ExecutorSettings& settings) {
  plugin::PluginFolder folder = load_folder(settings, create_built_in_executors(settings));
  auto client = folder.loaded.begin();
  for (plugin::PluginReport& report : folder.reports) {
    if (report.state == plugin::PluginState::refused) continue;
    const auto probe_result = (*client++)->probe();
    report.state = probe_result ? plugin::PluginState::works : plugin::PluginState::unusable;
    report.reason = probe_result ? *probe_result : probe_result.error().message;
  }
  return std::move(folder.reports);
}

plugin::PluginCheck check_plugin(const ExecutorSettings& settings, const std::string& file) {
  plugin::PluginOptions options;
  options.host = get_plugin_host(settings);
  options.file = file;
  return plugin::check_plugin(std::move(options), settings.clock);
}

std::unique_ptr<Executor> create_plugin_executor(const plugin::PluginCheck& check) {
  return check.client ? std::make_unique<plugin::PluginExecutor>(check.client) : nullptr;
}

}  // namespace mycojobs
