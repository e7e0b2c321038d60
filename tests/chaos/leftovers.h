// What a run may not leave on the host once its agents have been stopped.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "chaos/process_tree.h"
#include "support/process.h"

namespace mycojobs::test {

class Leftovers {
 public:
  explicit Leftovers(const TempDir& folder);  // before the run
  // After it. launchers: all that ran. Redis is still there. One line each; waits a little for the kernel.
  std::vector<std::string> look(ProcessTree&, const std::vector<pid_t>& launchers) const;

 private:
  std::vector<std::string> look_once(ProcessTree&, const std::vector<pid_t>& launchers) const;

  const TempDir& folder_;
  std::set<std::string> mounts_;
};

}  // namespace mycojobs::test
