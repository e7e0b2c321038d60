// Loads the plugin folder: each *.so file is a plugin, in alphabetical order. A refused plugin is reported with its
// reason and does not affect the other plugins.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "executors/plugin/plugin_client.h"

namespace mycojobs::plugin {

enum class PluginState {
  works,     // added to the table, and probe() succeeded
  unusable,  // added to the table, but probe() reports that this host cannot run its scripts
  loaded,    // added to the table, not probed
  refused,   // not loadable, or its name or a script type is already in use
};
constexpr std::string_view to_string(PluginState state) {
  return std::array<std::string_view, 4>{"works", "unusable", "loaded", "refused"}[static_cast<std::size_t>(state)];
}

struct PluginReport {
  std::string file;           // path
  std::string name, version;  // empty if the plugin was not loaded
  std::uint32_t abi = 0;
  std::vector<std::string> script_types;
  PluginState state = PluginState::refused;
  std::string reason;  // reason of `refused` and `unusable`; program that runs the scripts if `works`
};

struct PluginFolder {
  std::vector<PluginReport> reports;
  std::vector<std::shared_ptr<PluginClient>> loaded;  // in the same order
};

// taken_names, taken_types: names and script types that are already in use. A missing folder contains no plugins.
PluginFolder load_plugins(const std::string& folder, const std::string& host, std::set<std::string> taken_names,
                          std::set<std::string> taken_types, const Clock&);

}  // namespace mycojobs::plugin
