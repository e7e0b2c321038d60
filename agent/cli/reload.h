// Reads the configuration again while a process serves (SIGHUP), and puts in force what can change then: ceilings,
// secrets, the log's level. A configuration that is not valid changes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace mycojobs {

class Reload {
 public:
  explicit Reload(const Invocation& call) : options_(call.options), values_(call.values) {}
  // Called with settings that are valid. Of one thread, as reload().
  void on_reload(std::function<void(const Settings&)> apply) { apply_.push_back(std::move(apply)); }
  // What is wrong or has been done is logged.
  void reload();

 private:
  FlagValues options_;
  std::vector<ConfigValue> values_;  // in force, or in force after a restart
  std::vector<std::function<void(const Settings&)>> apply_;
};

}  // namespace mycojobs
