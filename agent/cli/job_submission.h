// Common parts of `run` and `job submit`: reading a job from a file and flags, validating it, and submitting it once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "flows/flow_plan.h"
#include "store/store.h"

namespace mycojobs {

// Reads a script; "-" is standard input. Errors: not_found, invalid (a folder), too_large, io.
Result<std::string> read_script(const std::string& file, std::size_t max_bytes);
// Checks that a script is UTF-8 text and not empty. Error invalid: names the file and the first invalid byte.
Result<void> check_script(const std::string& file, std::string_view script);
// Derives the script type from the file extension: "python" for "build.py"; empty: unknown.
std::string script_type_of(const std::string& file);

// Returns the script types of a plan's jobs and of its child flows, without jobs of remote supervisors. They are used
// to check whether a runner serves them: with the embedded Redis, a job without a runner would wait forever.
std::set<std::string> script_types_of(const FlowPlan&);
std::set<std::string> script_types_with_policy(const FlowPlan&);  // only of jobs with a policy

// Checks that the types can be executed. With a Redis in the settings, other hosts may serve them, so a type that is
// unknown to this build and to the runners causes only a warning. Otherwise the error is `unsupported` for the first
// type that no live runner serves, unless an executor of this host supports the type and a runner is still starting.
Result<void> check_served(const Invocation&, Store&, const std::set<std::string>& types);

std::vector<FlagRow> submission_flags();
Result<void> read_notify_flag(const Invocation&, std::string& notify);  // flag --notify, repeatable
std::vector<FlagRow> local_run_flags();                                 // flags that need no store

// Repeats the call while it fails with `unavailable`: for some seconds, or until a stop signal. REQUIRES: the call is
// idempotent.
Result<void> describe_missing_agents(const Invocation&, OpenedStore&, bool with_agent,
                                     const std::function<Result<void>(Store&)>&);

// A job to be submitted, with its delay by the store's clock.
struct Submission {
  Job job;
  std::optional<std::uint64_t> delay_ms;
};
// Reads FILE and flags and validates them before anything is stored. submit() checks the policy against the ceiling.
Result<Submission> read_submission(const Invocation&);

// Submits a job exactly once. A job without id and idempotency key gets a random key, so that a submission whose reply
// was lost can be repeated. Fails after some seconds, or at a stop signal.
Result<Job> submit(const Invocation&, OpenedStore&, Submission, bool with_agent);

}  // namespace mycojobs
