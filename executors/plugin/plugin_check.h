// `mycojobs plugin check FILE`: tests each function of a plugin with valid and invalid input, under the deadlines of an
// agent.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "executors/plugin/plugin_client.h"

namespace mycojobs::plugin {

struct CheckRow {
  std::string name;  // "handshake", "prepare: an empty script"
  bool ok = false;
  std::string detail;  // the observation, or the reason of the failure
};

struct PluginCheck {
  std::vector<CheckRow> rows;
  std::shared_ptr<PluginClient> client;  // null if the plugin could not be loaded
  bool ok() const {
    return std::all_of(rows.begin(), rows.end(), [](const CheckRow& row) { return row.ok; });
  }
};

PluginCheck check_plugin(PluginOptions, const Clock&);

}  // namespace mycojobs::plugin
