// The one table of executors: a new one is a row here and a folder beside python/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executors/plugin/plugin_check.h"
#include "executors/plugin/plugin_folder.h"
#include "executors/settings.h"
#include "mycojobs/executor.h"

namespace mycojobs {

// All that this build has, and all that plugins add; whether they work on this host or not: ask probe(). Names and
// script types are unique.
std::vector<std::unique_ptr<Executor>> make_executors(const ExecutorSettings&);

// Every plugin of the folder, loaded and probed: which are rows of the table, and why the others are not.
std::vector<plugin::PluginReport> list_plugins(const ExecutorSettings&);
// One plugin by itself, wherever its file is.
plugin::PluginCheck check_plugin(const ExecutorSettings&, const std::string& file);
std::unique_ptr<Executor> executor_of_plugin(const plugin::PluginCheck&);  // null: it could not be loaded

}  // namespace mycojobs
