// Jobs: making, starting, cancelling, running again, answering, reading.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inspect/jobs.h"
#include "service/caller.h"

namespace mycojobs::service {

// A new job, as this caller's; id 0: the next free one. Fills in whose and where it is. Error names the field: what
// cannot be (validate()), what is another's or no client's to write (domain/sender.h), a field that no job has, too
// long a script. owner: whose it will be.
Result<void> check_new_job(const Caller&, Job&, Id owner);

// New jobs of one owner, in no queue or (`queued`) each in its own: the one way by which they come in. All are checked,
// their policies against the ceiling too, before the first is written. Then they are written by steps of the store,
// which takes all of a step or none: `refused` is about one of all of them, and `jobs` are those of the steps before.
// One that was there before, with the same content, is given as it is; one with an id may have been created in no
// queue, and is queued then.
// Error: the store is away, say; what was written before is in `made`, which is to be empty.
Result<void> add_jobs(const Caller&, Store&, std::optional<Id> owner, std::span<Job>, bool queued, NewJobs& made);

// The record alone, in no queue. owner: whose; nothing: who asks.
Result<Job> create_job(const Caller&, Store&, std::optional<Id> owner, Job);
// At most 1,000. None, if one of them is wrong in itself; the error names it, "jobs[3]: ...", and says how many before
// it are written: where another one has its id or key, or the store went away.
Result<std::vector<Job>> create_jobs(const Caller&, Store&, std::optional<Id> owner, std::vector<Job>, bool queued);
// Stored and queued.
Result<Job> submit_job(const Caller&, Store&, std::optional<Id> owner, Job);
// Queues one that was created before.
Result<Job> start_job(const Caller&, Store&, const std::string& key);

// Who may do this with the job of that key: whose it is says the key. runner: that runs it, or ran it last; 0: none.
Result<void> may_with_job(const Caller&, Store&, Action, const std::string& key, Id runner);
// Everything about a job, for who may do this with it.
Result<JobView> find_job(const Caller&, Store&, Action, const std::string& key);
// Of the record only where it is: identity, status, detail, error, attempt, runner, times.
Result<Job> look_at_job(const Caller&, Store&, Action, const std::string& key);

// Where it is afterwards. An ended one is left alone.
Result<Job> cancel_job(const Caller&, Store&, const std::string& key);
// One that ended as error runs again. Error conflict: it has not ended, has finished, or was cancelled.
Result<Job> retry_job(const Caller&, Store&, const std::string& key);
// Queues a new job with the request of one that has ended, for the caller of that job: whoever asks, it runs with the
// rights of its original caller. Needs the rights of retry_job(). Error conflict: the job has not ended, or is of a
// flow. Error invalid, too_large: it is over the limits of today.
Result<Job> restart_job(const Caller&, Store&, const std::string& key);

// One that has ended, or was never queued, leaves with its log. Error conflict: it lives, or its flow does.
Result<void> delete_job(const Caller&, Store&, const std::string& key);

struct AnswerJob {
  std::string key;
  std::string name;  // of the approval, without approval:
  bool approved = true;
  std::string comment = {};  // at most kMaxComment bytes
};
struct AnsweredJob {
  bool changed = true;  // false: it had been approved before
  Job job;
};
// Approves or rejects what a job outside of a flow waits for. Errors: those of answer_prerequisite(); invalid (name),
// too_large (comment).
Result<AnsweredJob> answer_job(const Caller&, Store&, const AnswerJob&);

// A word of a list's filter. Error invalid names those that there are.
Result<JobStatus> read_job_status(const std::string& word);

struct ListJobs {
  JobsWanted wanted = {};  // but for the caller, where it may see its own alone
  std::size_t limit = 50;
};
inline constexpr std::size_t kMaxJobLooks = 100000;  // records that are looked at for a list
// A page (inspect/jobs.h) of those that the caller may see.
Result<JobsSlice> page_jobs(const Caller&, Store&, JobsWanted, std::size_t limit);
// For who may read the job.
Result<std::vector<JobMoment>> job_history(const Caller&, Store&, const std::string& key);
Result<JobList> list_jobs(const Caller&, Store&, const ListJobs&,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress);

}  // namespace mycojobs::service
