// Common parts of `run` and `job submit`: reading a job from a file and flags, validating it, and submitting it once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "cli/invocation.h"
#include "cli/store_session.h"
#include "flows/flow_plan.h"
#include "store/store.h"

namespace mycojobs {

// Reads a script; the path "-" is standard input. Errors: not_found, invalid (a folder), too_large, io.
Result<std::string> read_script(const std::string& path, std::size_t max_bytes);
// Reads a file that a job brings along; the path "-" is standard input. Errors as read_script().
Result<std::string> read_submitted_file(const std::string& path);
// Checks that a script is UTF-8 text and not empty. Error `invalid` names the file and the first invalid byte.
Result<void> check_script(const std::string& path, std::string_view script);
// Returns the script type for the file extension, such as "python" for "build.py", or an empty text.
std::string guess_script_type(const std::string& path);

// Returns the script types of the jobs of a plan and of its child flows, without jobs of remote supervisors. Used for
// check_types_are_served(), because a job that no runner serves would wait forever in the embedded Redis.
std::set<std::string> collect_script_types(const FlowPlan&);
std::set<std::string> collect_policy_script_types(const FlowPlan&);  // only types of jobs with a policy

// Checks that jobs of these script types can be executed. With a Redis in the settings, other hosts may serve them, so
// a type that is unknown to this build and to the runners causes only a warning. Otherwise the error is `unsupported`
// for the first type that no live runner serves, unless an executor of this host supports the type and a runner is
// still starting.
Result<void> check_types_are_served(const Invocation&, Store&, const std::set<std::string>& script_types);

std::vector<FlagRow> submission_flags();      // flags of `run` and `job submit`
std::vector<FlagRow> script_flags();          // the submission flags that describe the script and need no store
std::vector<FlagRow> submitted_file_flags();  // --stdin and --file
// Adds the values of --notify to `receivers`, which has the format of Job::notify.
Result<void> add_notify_flags(const Invocation&, std::string& receivers);
// Reads the values NAME=VALUE of --env.
Result<void> read_environment_flags(const Invocation&, std::map<std::string, std::string>& environment);

// Calls `attempt` until its error is not `unavailable`, for at most some seconds and until a stop signal. Tells the
// user about the first failure. `with_agent` as in reopen_store(). REQUIRES: `attempt` is idempotent.
Result<void> retry_while_unavailable(const Invocation&, StoreSession&, bool with_agent,
                                     const std::function<Result<void>(Store&)>& attempt);

// A job to be submitted, with its delay by the store's clock.
struct Submission {
  Job job;
  std::optional<std::uint64_t> delay_ms;
  std::map<std::string, std::string> large_files = {};  // paths of files that must be uploaded first, by name
};
// Reads FILE and the flags and validates them before anything is stored. The policy is compared with the ceiling only
// by submit_once(). allows_uploads: the caller calls upload_large_files(); otherwise a large file is an error.
Result<Submission> read_submission(const Invocation&, bool allows_uploads = false);
// Uploads the large files (cli/uploads/file_upload.h) and adds them to the job.
Result<void> upload_large_files(const Invocation&, Store&, Submission&);

// Submits a job exactly once, with attempts like those of retry_while_unavailable(). A job without id and idempotency
// key gets a random idempotency key, so that the submission can be repeated after the loss of its reply.
Result<Job> submit_once(const Invocation&, StoreSession&, Submission, bool with_agent);

}  // namespace mycojobs
