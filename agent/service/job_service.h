// Operations on jobs: create, start, cancel, run again, answer, read.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inspect/job_view.h"
#include "service/request_params.h"
#include "service/service_caller.h"

namespace mycojobs::service {

// Checks a new job of this caller and sets its owner and context. Id 0 means the next free id. owner: the owner of the
// job. An error names the field: an invalid value (validate()), a field that belongs to another actor or that clients
// must not write (security/sender_check.h), an unknown field, or a script over the limit.
Result<void> check_new_job(const RequestContext&, Job&, Id owner);

// Adds new jobs of one owner, outside of queues or (`queued`) each to its queue. All new jobs pass through this
// function. All jobs and their policies against the ceiling are checked before the first job is written. The jobs are
// then written in steps of the store; each step is atomic. If a job is refused, `created.rejected` identifies the job,
// and `created.jobs` are the jobs of the earlier steps. A job that exists with the same content is returned as stored.
// A job with an id may have been created outside of queues and is then queued. After an error, such as an unavailable
// store, `created` contains the jobs written before. REQUIRES: `created` is empty.
Result<void> add_jobs(const RequestContext&, Store&, std::optional<Id> owner_id, std::span<Job>, bool queued,
                      NewJobs& created);

// Stores the record without adding it to a queue. owner_id: the owner; no value means the caller.
Result<Job> create_job(const RequestContext&, Store&, std::optional<Id> owner_id, Job);
// Creates at most 1,000 jobs. If a job is invalid in itself, no job is created. An error names the job, "jobs[3]: ...",
// and the number of jobs that were written before it: another job has the same id or key, or the store became
// unavailable.
Result<std::vector<Job>> create_jobs(const RequestContext&, Store&, std::optional<Id> owner_id, std::vector<Job>,
                                     bool queued);
// Stores a job and adds it to its queue.
Result<Job> submit_job(const RequestContext&, Store&, std::optional<Id> owner_id, Job);
// Adds a job that was created before to its queue.
Result<Job> start_job(const RequestContext&, Store&, const std::string& key);

// Checks the caller's right to this action on the job of that key, which contains the owner. runner: the runner that
// runs the job or ran it last; 0: no runner.
Result<void> check_job_permission(const RequestContext&, Store&, Action, const std::string& key, Id runner);
// Returns everything about a job, after the check of the caller's right to this action.
Result<JobView> find_job(const RequestContext&, Store&, Action, const std::string& key);
// Returns only the fields about the progress of the job: identity, status, detail, error, attempt, runner, times.
Result<Job> inspect_job(const RequestContext&, Store&, Action, const std::string& key);

// Cancels a job and returns its progress fields after the change. An ended job is not changed.
Result<Job> cancel_job(const RequestContext&, Store&, const std::string& key);
// Runs a job again that ended as error. Error `conflict`: the job has not ended, has finished, or was cancelled.
Result<Job> retry_job(const RequestContext&, Store&, const std::string& key);
// Queues a new job with the request of an ended job. The new job belongs to the original caller and runs with that
// caller's rights, for every requester; its fields `restart_of` and `restarted_by` name the ended job and the
// requester. Needs the rights of retry_job(). idempotency_key: a second restart of the original caller's jobs with this
// key returns the job of the first one. Error `conflict`: the job has not ended, belongs to a flow, is an effect of a
// workflow, or was for a supervisor (`supervisor_url`). Errors `invalid`, `too_large`: the job exceeds the current
// limits.
Result<Job> restart_job(const RequestContext&, Store&, const std::string& key,
                        const std::optional<std::string>& idempotency_key);

// Deletes a job that has ended or was never queued, with its log. Error `conflict`: the job or its flow is active.
Result<void> delete_job(const RequestContext&, Store&, const std::string& key);

struct AnswerJob {
  std::string key;
  std::string name;  // name of the approval, without the prefix approval:
  bool approved = true;
  std::string comment = {};  // at most kMaxComment bytes
};
struct AnsweredJob {
  bool changed = true;  // false: the job had been approved before
  Job job;
};
// Approves or rejects an approval that a job outside of a flow waits for. Errors: the errors of answer_prerequisite();
// `invalid` (name); `too_large` (comment).
Result<AnsweredJob> answer_job(const RequestContext&, Store&, const AnswerJob&);

struct ListJobs {
  JobFilter filter = {};
  std::size_t limit = 50;
};
JobFilter parse_job_filter(const RequestParams&);     // of job.list and jobs.page
inline constexpr std::size_t kMaxJobChecks = 100000;  // maximum number of records read for a list
// Returns a page (inspect/job_view.h) of the jobs that the caller can see.
Result<JobsSlice> page_jobs(const RequestContext&, Store&, JobFilter, std::size_t limit);
// Returns the history of a job. Needs the right to read the job.
Result<std::vector<JobTimelineEntry>> read_job_history(const RequestContext&, Store&, const std::string& key);
Result<JobList> list_jobs(const RequestContext&, Store&, const ListJobs&,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace mycojobs::service
