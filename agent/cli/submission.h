// What `run` and `job submit` have in common: a job from a file and flags, submitted once. And what is known
// of scripts in files before anything is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/session.h"
#include "domain/flow_plan.h"
#include "mycojobs/store.h"

namespace mycojobs {

// "-": standard input. Errors: not_found, invalid (a folder), too_large, io.
Result<std::string> read_script(const std::string& file, std::size_t max_bytes);
// Whether it can be a job's script: text, and some. Error invalid: names the file, and the first byte that is no UTF-8.
Result<void> check_script(const std::string& file, std::string_view script);
// By the ending of its name: "python" of "build.py"; empty: it does not tell.
std::string script_type_of(const std::string& file);

// Whether anybody runs what is about to be submitted. On the embedded default nobody else will come: what no runner
// there takes would wait for ever.
//
// The script types of a plan's jobs, and of the flows in it; those of jobs that another supervisor runs aside.
std::set<std::string> script_types_of(const FlowPlan&);
std::set<std::string> script_types_with_policy(const FlowPlan&);  // of those jobs that have a policy

// With a Redis named: fine, others may serve it; a type that neither this build nor a runner there knows gets a
// warning. Else error unsupported for the first type that no live runner takes, unless it works here: then a runner is
// just starting.
Result<void> check_served(const Invocation&, Store&, const std::set<std::string>& types);

std::vector<FlagRow> submission_flags();
Result<void> read_notify_flag(const Invocation&, std::string& notify);  // --notify, any number of times
std::vector<FlagRow> local_run_flags();                                 // those that need no store

// Calls again as long as it says that the store is unavailable: for some seconds, or until a stop signal. What it asks
// for must be such that it may be asked for twice.
Result<void> while_away(const Invocation&, Opened&, bool with_agent, const std::function<Result<void>(Store&)>&);

struct Submission {
  Job job;
  std::optional<std::uint64_t> delay_ms;
};
// FILE and flags. Mistakes are errors here, before anything is stored; submit() refuses a policy above the
// ceiling.
Result<Submission> read_submission(const Invocation&);

// Exactly once: a job that names neither id nor idempotency key gets a key of its own, so that a submission whose reply
// was lost can be repeated when the store is back. Gives up after some seconds, or at a stop signal.
Result<Job> submit(const Invocation&, Opened&, Submission, bool with_agent);

}  // namespace mycojobs
