// `mycojobs sandbox run`: one job in a sandbox of this process. No store, no agent, no lease.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct LocalRun {
  Outcome outcome;
  JobEnd end;
};

struct LocalRunHooks {
  std::uint64_t output_bytes = 0;                                      // over it the run is killed; 0: never
  std::function<void(bool is_err, std::string_view bytes)> on_output;  // as it comes
  std::function<void(const std::string&)> on_note = [](const std::string&) {};
  std::string cancel_at = {};  // once its stdout holds this it is asked to end, with five seconds to do so
};

// Blocks until the job has ended. stages: as of the executor. first_run: of the sandbox; each stage takes one.
// Error: as of Sandbox::launch.
Result<LocalRun> run_locally(Sandbox&, std::vector<RunSpec> stages, Conversation&, const LocalRunHooks&,
                             std::uint64_t first_run = 1);

}  // namespace mycojobs
