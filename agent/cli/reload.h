// Reloads the configuration of a service (SIGHUP) and applies the settings that can change at run time: ceilings,
// secrets and the log level. An invalid configuration changes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/invocation.h"

namespace mycojobs {

class Reload {
 public:
  explicit Reload(const Invocation& call);
  // Registers a callback for valid settings. Must be called on the thread that calls reload().
  void on_reload(std::function<void(const Settings&)> callback) { callbacks_.push_back(std::move(callback)); }
  // Reloads, and logs errors and changes.
  void reload();

 private:
  FlagValues options_;
  std::vector<ConfigValue> values_;  // effective values, including those that need a restart
  std::string volumes_;              // names and values of the settings of volumes in force
  std::vector<std::function<void(const Settings&)>> callbacks_;
};

}  // namespace mycojobs
