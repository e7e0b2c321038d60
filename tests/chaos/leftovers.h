// Objects that must not remain on the host after the agents have stopped.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "chaos/process_tree.h"
#include "support/process.h"

namespace mycojobs::test {

class Leftovers {
 public:
  explicit Leftovers(const TempDir& folder);  // construct before the run
  // Returns one line per leftover after the run. `launchers`: all launchers of the run. Redis must still run. Waits a
  // short time for the kernel.
  std::vector<std::string> look(ProcessTree&, const std::vector<pid_t>& launchers) const;

 private:
  std::vector<std::string> check_once(ProcessTree&, const std::vector<pid_t>& launchers) const;

  const TempDir& folder_;
  std::set<std::string> mounts_;
};

}  // namespace mycojobs::test
