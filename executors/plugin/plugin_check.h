// `mycojobs plugin check FILE`: one plugin by itself, each of its functions with sound and unsound input, under the
// deadlines that an agent sets.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "executors/plugin/plugin_client.h"

namespace mycojobs::plugin {

struct CheckRow {
  std::string name;  // "handshake", "prepare: an empty script"
  bool ok = false;
  std::string detail;  // what was seen, or why it is not ok
};

struct PluginCheck {
  std::vector<CheckRow> rows;
  std::shared_ptr<PluginClient> client;  // null: it could not be loaded
  bool ok() const {
    return std::all_of(rows.begin(), rows.end(), [](const CheckRow& row) { return row.ok; });
  }
};

PluginCheck check_plugin(PluginOptions, const Clock&);

}  // namespace mycojobs::plugin
