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
  // Returns one line for each leftover of the run. `launchers` are all launchers of the run. Redis must still run.
  // Waits up to 10 s, because the kernel removes some objects later.
  std::vector<std::string> find(ProcessTree&, const std::vector<pid_t>& launchers) const;

 private:
  std::vector<std::string> check_once(ProcessTree&, const std::vector<pid_t>& launchers) const;

  const TempDir& folder_;
  std::set<std::string> mounts_;
};

}  // namespace mycojobs::test
