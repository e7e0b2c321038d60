// One run in a sandbox of this process: no store, no agent, no lease.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct LocalRun {
  Outcome outcome;
  JobEnd end;
};
using OnOutput = std::function<void(bool is_err, std::string_view bytes)>;  // as it comes

// Blocks until the run has ended. output_kill: its output ends it where it is over output_bytes.
// Error: as of Sandbox::launch.
// stages: as of the executor.
Result<LocalRun> run_locally(Sandbox&, std::vector<RunSpec> stages, Conversation&, std::uint64_t output_bytes,
                             bool output_kill, const OnOutput&);

}  // namespace mycojobs
