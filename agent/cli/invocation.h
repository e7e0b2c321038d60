// A parsed command with its settings, and the dependencies of the commands. All commands and their helpers use this
// header; it does not depend on the table of commands.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/config/config.h"
#include "executors/executor.h"
#include "executors/plugin/plugin_check.h"
#include "executors/plugin/plugin_folder.h"
#include "sandbox/sandbox.h"
#include "service/request_table.h"
#include "store/store.h"
#include "telemetry/metrics.h"
#include "telemetry/traces.h"

namespace mycojobs {

// Availability of one layer of the sandbox on this host.
struct LayerCheck {
  std::string name;  // as in sandbox.allow_missing
  bool ok = false;
  std::string detail;        // the observed state
  std::string remedy;        // empty if ok
  bool is_optional = false;  // a folder of fs.write, for which a job may never ask
};

// Dependencies of the commands. main.cpp creates them and is the only file that names the implementations.
struct ProgramDependencies {
  // Makes the factory of store connections. url: the Redis server of contexts without a server of their own.
  std::function<std::unique_ptr<StoreFactory>(const Settings&, const std::string& url)> make_stores;
  // Starts the sandbox. warm_contexts: contexts whose script hosts are started at once. alive_fd: a descriptor that
  // the processes of the sandbox keep open, but no job (worker/leases/instance_lock.h); -1: no descriptor.
  std::function<Result<std::unique_ptr<Sandbox>>(const Settings&, const std::vector<Id>& warm_contexts, int alive_fd)>
      start_sandbox;
  std::function<std::vector<std::unique_ptr<Executor>>(const Settings&)> make_executors;
  std::function<std::vector<plugin::PluginReport>(const Settings&)> list_plugins;  // all plugins, loaded and probed
  std::function<plugin::PluginCheck(const Settings&, const std::string& file)> check_plugin;
  // Returns the executor of a checked plugin, or null if the plugin is not loaded.
  std::function<std::unique_ptr<Executor>(const plugin::PluginCheck&)> create_plugin_executor;
  std::function<Result<std::vector<LayerCheck>>(const Settings&)> probe_layers;
  // Returns the number of slots that the limits of this host permit, and the reason if there are fewer.
  std::function<std::pair<std::uint32_t, std::string>(std::uint32_t)> fit_slots = [](std::uint32_t slots) {
    return std::pair(slots, std::string());
  };
  const Clock& clock;
  const std::shared_ptr<Metrics>& metrics;  // metrics of this process; set after the settings are read
  const std::shared_ptr<Traces>& traces;    // traces of this process; set after the settings are read
};

// A flag of a command.
struct FlagRow {
  std::string name;        // without leading --
  std::string_view value;  // placeholder of the value; "" for a switch
  std::string help;
  bool is_repeatable = false;
  std::string_view choices = {};          // allowed values, separated by spaces; empty: any
  const service::Param* param = nullptr;  // the parameter of a request that the flag sets; null: none
};

struct Invocation;
// A row of the table of commands.
struct Command {
  std::string_view name;  // "job list"
  std::string_view help;
  // "FILE", "[FILE]", "A B", "FILE...", "": names separated by spaces; [] is optional. "FILE [-- ARG...]": the words
  // after `--` follow FILE in Invocation::arguments.
  std::string_view arguments;
  std::vector<FlagRow> flags;
  Result<int> (*run)(Invocation&);            // returns the exit code, or an error to be printed
  bool is_service = false;                    // a service logs its actions; other commands log only problems
  const service::Request* request = nullptr;  // the request that the command sends; null: no request of the table
};

// A parsed command with its effective settings.
struct Invocation {
  const ProgramDependencies& dependencies;
  FlagValues options;  // options of the command line
  Settings settings;   // effective settings; not set for `config`
  bool json = false;
  std::vector<std::string> arguments;
  std::map<std::string, std::vector<std::string>, std::less<>> flags;  // flags of the command
  const Command* command = nullptr;
  std::vector<ConfigValue> config_values = {};  // effective settings with their sources

  // Returns the context of commands that use a single job, flow or queue: the first context of the settings.
  Id context() const { return settings.contexts.at(0); }
  bool has(std::string_view flag) const { return flags.contains(flag); }
  // Returns the last value of the flag.
  std::string get(std::string_view flag, std::string_view fallback = "") const {
    const auto entry = flags.find(flag);
    return entry == flags.end() ? std::string(fallback) : entry->second.back();
  }
  // Returns all values of a flag that can be repeated.
  const std::vector<std::string>& get_all(std::string_view flag) const {
    static const std::vector<std::string> kNoValues;
    const auto entry = flags.find(flag);
    return entry == flags.end() ? kNoValues : entry->second;
  }
};

}  // namespace mycojobs
