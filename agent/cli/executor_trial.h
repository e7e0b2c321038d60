// Checks whether the program of an executor from [executors.NAME] works in its sandbox. A version probe is not
// sufficient: `node --version` succeeds on the host, while every script fails in the sandbox without the permissions
// that node's compiler needs.
#pragma once

#include <string>

#include "cli/invocation.h"

namespace mycojobs {

class ExecutorTrials {
 public:
  explicit ExecutorTrials(const Invocation& call) : call_(call) {}

  // Runs an empty script on the host, and then in a sandbox with the policy of the executor's jobs. Returns the reason
  // if only the run in the sandbox fails. Otherwise returns an empty text, also if the check is not possible because
  // the executor is not from [executors.NAME], its language rejects an empty script, or no sandbox is available.
  std::string find_failure(const Executor&);

 private:
  Result<std::string> find_failure_in_sandbox(const Executor&);

  const Invocation& call_;
  std::unique_ptr<Sandbox> sandbox_;  // started by the first check
  std::uint64_t next_run_id_ = 1;
};

}  // namespace mycojobs
