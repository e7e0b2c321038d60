// `mycojobs sandbox run`: runs one job in a sandbox of this process, without store, agent or lease.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "executors/executor.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

// Result of run_locally().
struct LocalRun {
  Outcome outcome;
  JobEnd end;
};

// Callbacks and limits of run_locally().
struct LocalRunHooks {
  std::uint64_t output_bytes = 0;                                      // more output kills the run; 0: unlimited
  std::function<void(bool is_err, std::string_view bytes)> on_output;  // receives output during the run
  std::function<void(const std::string&)> on_note = [](const std::string&) {};
  std::string cancel_at = {};  // cancels the run, with a grace period of 5 s, once stdout contains this text
};

// Runs a job to its end. stages: of the executor. first_run: id of the first run; each stage uses one id. Errors: as
// for Sandbox::launch().
Result<LocalRun> run_locally(Sandbox&, std::vector<RunSpec> stages, Conversation&, const LocalRunHooks&,
                             std::uint64_t first_run = 1);

}  // namespace mycojobs
