// Finds out whether a program from [executors.NAME] works in its sandbox. A version probe cannot tell: `node --version`
// answers on the host, while every script dies in the sandbox without the grants that node's compiler needs.
#pragma once

#include <string>

#include "cli/commands.h"

namespace mycojobs {

class ExecutorTrials {
 public:
  explicit ExecutorTrials(const Invocation& call) : call_(call) {}

  // Runs an empty script on the host, and then in a sandbox with the policy of the executor's jobs. Returns why it
  // fails in the sandbox although it ends well on the host. Empty: it ends well in both; or nothing is known, because
  // the executor is not from [executors.NAME], its language refuses an empty script, or no sandbox can be had.
  std::string failure_of(const Executor&);

 private:
  Result<std::string> failure_in_sandbox(const Executor&);

  const Invocation& call_;
  std::unique_ptr<Sandbox> sandbox_;  // started by the first trial
  std::uint64_t next_run_ = 1;
};

}  // namespace mycojobs
