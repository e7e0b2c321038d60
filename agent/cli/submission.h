// What `run` and `job submit` have in common: a job from a file and flags, submitted once.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/opened.h"

namespace mycojobs {

std::vector<FlagRow> submission_flags();
Result<void> read_notify_flag(const Invocation&, std::string& notify);  // --notify, any number of times
std::vector<FlagRow> local_run_flags();                                 // those that need no store

struct Submission {
  Job job;
  std::optional<std::uint64_t> delay_ms;
};
// FILE and flags. Mistakes are told here, before anything is stored; what the policy asks for and may not is told by
// submit().
Result<Submission> read_submission(const Invocation&);

// Exactly once: a job that names neither id nor idempotency key gets a key of its own, so that a submission whose reply
// was lost can be repeated when the store is back. Gives up after some seconds, or at a stop signal.
Result<Job> submit(const Invocation&, Opened&, Submission, bool with_agent);

}  // namespace mycojobs
