// The table of executors. A new executor needs a row here and a folder beside python/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "executors/executor_settings.h"
#include "executors/plugin/plugin_check.h"
#include "executors/plugin/plugin_folder.h"

namespace mycojobs {

// Returns all built-in executors and those of plugins. An executor in the table may not work on this host: see probe().
// Names and script types are unique.
std::vector<std::unique_ptr<Executor>> create_executors(const ExecutorSettings&);

// Loads and probes every plugin of the folder and reports which are usable, with the reasons why the others are not.
std::vector<plugin::PluginReport> list_plugins(const ExecutorSettings&);
// Loads one plugin from any path.
plugin::PluginCheck check_plugin(const ExecutorSettings&, const std::string& file);
// Returns null if the plugin could not be loaded.
std::unique_ptr<Executor> create_plugin_executor(const plugin::PluginCheck&);

}  // namespace mycojobs
