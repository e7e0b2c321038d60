// The plugin folder: every *.so in it is a plugin, in the order of their names. One that is refused is reported with
// its reason, and the others are loaded all the same.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "executors/plugin/plugin_client.h"
#include "mycojobs/clock.h"

namespace mycojobs::plugin {

enum class PluginState {
  works,     // it is a row of the table, and its probe says what runs the scripts
  unusable,  // it is one, and its probe says that this host cannot run them
  loaded,    // it is one, and was not probed
  refused,   // it could not be loaded, or what it adds is there already
};
constexpr std::string_view word(PluginState state) {
  return std::array<std::string_view, 4>{"works", "unusable", "loaded", "refused"}[static_cast<std::size_t>(state)];
}

struct PluginReport {
  std::string file;           // its path
  std::string name, version;  // empty: it could not be loaded
  std::uint32_t abi = 0;
  std::vector<std::string> script_types;
  PluginState state = PluginState::refused;
  std::string reason;  // why it is refused or unusable; what runs the scripts
};

struct PluginFolder {
  std::vector<PluginReport> reports;
  std::vector<std::shared_ptr<PluginClient>> loaded;  // in the same order
};

// taken: names and script types of the executors that are there already. A folder that does not exist has no plugins.
PluginFolder load_plugins(const std::string& folder, const std::string& host, std::set<std::string> taken_names,
                          std::set<std::string> taken_types, const Clock&);

}  // namespace mycojobs::plugin
