// Submission of jobs, and requests of users for jobs. Errors and thread-safety: store/store.h.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// Result of submitting several jobs in one call.
struct NewJobs {
  struct RejectedJob {
    std::size_t index = 0;  // position of the job in the call
    Error error;
  };
  std::vector<Job> jobs;                // current state of the jobs
  std::vector<bool> existed;            // for each job: it existed before
  std::optional<RejectedJob> rejected;  // if set, nothing was written, and `jobs` is empty
};

// Creation of jobs, and requests of users for jobs.
class SubmitStore {
 public:
  explicit SubmitStore(StoreConnection& connection) : connection_(connection) {}

  // Writes the record and queues the job at run_at_ms. Id 0 allocates the next free id of the caller. An id that exists
  // with the same content (see same_content()) is returned unchanged; with other content the error is `conflict`. An
  // idempotency_key that the caller has used before refers to its first job in the same way.
  Result<Job> submit(const Job&);
  // Writes only the record: start_job() queues it, or a flow adopts it. Ids and conflicts as in submit().
  Result<Job> create_job(const Job&);
  // submit() (if `queued`) or create_job() for many jobs. Processes as many jobs from the front as fit into one step of
  // the server, at least one, and writes all or none of these. The caller repeats the call with the remaining jobs.
  Result<NewJobs> submit_batch(std::span<const Job>, bool queued);
  // Queues a job whose record is in no queue. A job that is in a queue or a flow, runs, or has run is not changed.
  // Error not_found.
  Result<Job> start_job(Id context, const std::string& job_key);
  // Requests cancellation, which is stored permanently. An unclaimed job ends as cancelled in this call. A claimed job
  // is ended by its owner (Renewal::cancel). An ended job is not changed. Error not_found.
  Result<void> cancel(Id context, const std::string& job_key);
  // Runs a job that ended as error again, as its next attempt, and removes its dead letter. Errors: not_found;
  // conflict: the job has not ended, has finished, or was cancelled, which is permanent.
  Result<void> requeue(Id context, const std::string& job_key);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
