#include "executors/table.h"

#include <algorithm>

#include "executors/command/command_executor.h"
#include "executors/native/native_executor.h"
#include "executors/python/python_executor.h"
#include "executors/v/v_executor.h"

namespace mycojobs {
namespace {

using Table = std::vector<std::unique_ptr<Executor>>;

// Stands instead of one of ours with the same name.
void add_command(Table& table, const CommandSettings& command) {
  const auto same = [&](const auto& each) { return each->name() == command.name; };
  const auto place = std::find_if(table.begin(), table.end(), same);
  auto executor = std::make_unique<CommandExecutor>(command);
  if (place == table.end()) {
    table.push_back(std::move(executor));
  } else {
    *place = std::move(executor);
  }
}

}  // namespace

Table make_executors(const ExecutorSettings& settings) {
  Table table;
  table.push_back(std::make_unique<PythonExecutor>(settings.libexec_dir + "/mycojobs-pyhost"));
  table.push_back(std::make_unique<NativeExecutor>(settings.state_dir));
  table.push_back(std::make_unique<VExecutor>(settings.v_compiler, settings.v_flags, settings.state_dir));
  for (const CommandSettings& command : settings.commands) add_command(table, command);
  return table;
}

}  // namespace mycojobs
