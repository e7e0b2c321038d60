// Record fields of new and ended jobs, their queues, and the comparison of jobs, as used by the stores of jobs and of
// flows. Thread-safe: the functions have no side effects.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/file_holder.h"
#include "model/job_end.h"
#include "model/records.h"
#include "store/keys.h"

namespace mycojobs {

class RecordStore;

// Queues that status counts and the list of jobs always include, since they may contain jobs of other clients before an
// agent has served the context.
inline constexpr std::array<std::string_view, 6> kBuiltInQueues = {"queue:python", "queue:osis",   "queue:sal",
                                                                   "queue:v",      "queue:native", "queue:rust"};

// Returns the fields of a new record that its creator has set, without the fields that the store, a claim or an end
// writes. Error: invalid (see validate()), also if the contents of its files are missing; id 0 is allowed.
Result<Fields> new_job_fields(const Job&);
// Returns the contents of the files of a new job, as fields of mj:job-files:<job key>.
Fields new_job_files(const Job&);
// Reads the contents of the files that the record of a job describes, and sets Job::submitted_files. Errors: invalid
// (a content is missing, or does not match its description; the message names the file), unavailable.
Result<void> load_submitted_files(RecordStore&, Id context, const std::string& job_key, Job&);
// The first part of load_submitted_files(), without the comparison: returns the fields for restore_submitted_files().
Result<Fields> load_stored_files(RecordStore&, Id context, const std::string& job_key, const Job&);
// Returns the coordinator that has the files that were received with the message or the answer of a job. Returns an
// unknown holder if no files were received. Errors: those of RecordStore::load_fields().
Result<FileHolder> find_received_files_holder(RecordStore&, Id context, const std::string& job_key);
// Returns the holder of the artifacts of a job: the agent of the runner in its record, or the coordinator that received
// them. Errors as above.
Result<FileHolder> find_artifact_holder(RecordStore&, Id context, const std::string& job_key, Id runner);
// As new_job_fields(), for a job of a flow. A node that the flow executes itself has no script, and its name is
// stored as the script. Error invalid: as in new_job_fields(), or the id is 0.
Result<Fields> planned_fields(const Job&);
// Returns the queue of a job without a flow: the queue of the runner that its record names ("supervisor_url":
// runner:<id>), or of its script type.
std::string submission_queue(const Job&);
// Returns the queue to which a flow dispatches the job: the queue of its "supervisor_url", or of its script type.
std::string dispatch_queue(const Job&);
// Returns the queue for a "supervisor_url": the queue of a runner, or the router's queue for the host.
std::string supervisor_queue(const std::string& url);
std::string runner_queue(std::string_view id);  // "mj:queue:runner20": jobs that must run on this runner
inline std::string runner_queue(Id runner) { return runner_queue(std::to_string(runner)); }
// Returns the queue of jobs for a supervisor at this address. Each host has a queue of its own, so that a slow host
// does not delay jobs for other hosts. The result is kRouterQueueKey if the address contains no host; the router then
// rejects the job.
std::string router_queue(std::string_view address);
// Returns the record fields of an end, with the status first.
Fields end_fields(const JobEnd&);
// Returns the fields of a record that its end has written, in the order of end_fields(), for compute_end_digest().
Fields extract_end_fields(const Fields& record);
// Returns a digest of the fields of an end. The store compares it to accept a repeated report of the same end, and to
// detect a record that was changed after its end. An end that a script sets itself has the digest of digest()
// (scripts/lib/dispatch_journal.lua), since Redis offers scripts SHA-1 only. The two are never compared with each
// other: the claim of such an end has no claim id, and the script ended_job compares its digest.
std::string compute_end_digest(const Fields&);
// Returns true if a second submission of an id (or of an idempotency key) is the same job: script, type, environment,
// arguments, files, timeout, dependencies, prerequisites, retries, inputs and policy are equal.
bool same_content(const Job&, const Job&);
// Evaluates the reply of a script that creates a record; `outcome` is new, exists or used. Returns the stored job.
// Error conflict: the id was used before, or the record exists with other content than `submitted`.
Result<Job> check_created_record(std::string_view outcome, const std::string& key, const Fields& record,
                                 const Job& submitted);
// Parses the text of a field that any client may have written. Returns 0 if the text is not a whole number.
std::uint64_t parse_whole_number(const std::string& text);
// Returns the fields of a runner's record that its owner writes.
Fields runner_fields(const Runner&);

}  // namespace mycojobs
