// Runs one job in a sandbox of this process, without a store, an agent or a lease.
#pragma once

#include <cstdint>
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
  std::uint64_t max_output_bytes = 0;                                  // more output kills the run; 0: unlimited
  std::function<void(bool is_err, std::string_view bytes)> on_output;  // receives output during the run
  std::function<void(const std::string&)> on_note = [](const std::string&) {};
  std::string cancel_text = {};  // when stdout contains this text, the run is cancelled with a grace period of 5 s
};

// Runs a job to its end, one stage of the executor after the other. first_run: id of the run of the first stage; each
// further stage uses the next id. Errors: those of Sandbox::launch().
Result<LocalRun> run_locally(Sandbox&, std::vector<RunSpec> stages, Conversation&, const LocalRunHooks&,
                             std::uint64_t first_run = 1);

}  // namespace mycojobs
