// Port: claims of jobs, and reports of their owners. Implemented by store/redis/redis_claims.h, and by test doubles.
// Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/file_holder.h"
#include "model/job_end.h"
#include "model/records.h"

namespace mycojobs {

// The right to report on a job. Only the owner of the claim has `token`; the store has a hash of it.
struct ClaimRef {
  Id context = 0;
  std::string job_key;
  std::string claim_id;
  std::string token;             // 64 hex characters
  std::string script_type = {};  // script type of the job; label of metrics
  // The next three members are for trace spans: the job's trace, its attempt, and the local time of the claim's answer.
  std::string traceparent = {};
  std::uint32_t attempt = 0;
  std::uint64_t claimed_us = 0;  // since 1970
};

// Request of a runner for jobs.
struct ClaimRequest {
  Id context = 0;
  Id runner = 0;
  // Actor that claims. If the context's record names executors, only these actors and the admins may claim; for others
  // the error is `denied`. The value is 0 for an agent without an actor. It is nullopt for a component of the operator
  // (router, `dev`), whose permission is not checked.
  std::optional<Id> actor = std::nullopt;
  std::string instance;             // instance of the runner (RunnerHolder::instance)
  std::vector<std::string> queues;  // list keys, in the order in which jobs are claimed from them
  std::uint32_t max_jobs = 1;       // 1 to 64
  std::uint64_t max_bytes =
      8ULL << 20;  // limit for the sum of all records; the first job is returned regardless of its size
  std::uint64_t max_script_bytes = 4ULL << 20;  // a job with a larger script becomes a dead letter
  std::uint32_t max_deliveries =
      3;  // number of claims without a reported end, after which a job becomes a dead letter (crash_loop)
  std::uint32_t lease_ms = 30000;
};

// A job with its claim.
struct ClaimedJob {
  ClaimRef ref;
  std::string queue;
  std::uint64_t epoch = 0;  // the job's fencing number, which increases with every claim of the job
  std::uint32_t attempt = 1, deliveries = 1;
  Fields record;               // the whole hash, including the claim's own writes
  std::uint64_t log_base = 0;  // number of the last entry of the log; the store adds it to the numbers of LogAppend
};

// Result of ClaimStore::claim().
struct ClaimReply {
  std::vector<ClaimedJob> jobs;
  std::uint32_t skipped_entries = 0;  // entries that became dead letters or anomalies, or wait for their record
  std::vector<std::string> paused;    // queues of the request that are paused and should not be waited for
  // True if the call reached its bound, because of many entries that cannot run, before the queues were empty.
  bool has_more = false;
  // False if the queues had no entries, for example since another agent was faster.
  bool has_found_entries = false;
};

enum class Renewal { renewed, stale, cancel };  // cancel: renewed, and cancellation was requested

// Adds lines to the log of a claimed job.
struct LogAppend {
  ClaimRef claim;
  std::vector<Log> lines;  // seq ascending; a line whose seq is stored already is ignored
  // Stored lines of the output to delete, by their numbers; 0: none. Other lines between them stay. The store examines
  // the first 512 entries of the range.
  std::uint64_t dropped_first = 0, dropped_last = 0;
  std::uint64_t dropped_bytes = 0;  // estimated size of the entries of the range; bounds the work of one call
};
// Reports the end of a claimed job, or of its attempt.
struct EndReport {
  ClaimRef claim;
  JobEnd end;
  // Pause before the next attempt, if a failed attempt is to be retried. Ignored if cancellation was requested.
  std::optional<std::uint64_t> retry_after_ms = std::nullopt;
};
// Detail of a claimed job that has not ended: running, unkillable, artifact_store.
struct DetailUpdate {
  ClaimRef claim;
  std::string detail;
  std::string reason = {};  // for users; empty: unchanged
  // Whether the end of the job is on the disk of the runner, so that the next agent of the runner reports it. The claim
  // is then kept until its lease expires, even if it is certain that the agent has ended.
  bool is_end_saved = false;
};
// Returns a job to the front of its queue after a run without a result, for example after the launcher has died.
struct Release {
  ClaimRef claim;
  std::string reason;
  bool was_started = true;  // if nothing of the job was started, the claim does not count as a delivery
};
// Parks a job whose inputs are files that a runner or a coordinator does not send now. No delivery is counted.
struct AwaitInputs {
  static constexpr std::size_t kMaxSources = 1000;
  ClaimRef claim;
  FileHolder holder;
  std::uint64_t timeout_ms = 0;  // maximum wait for the holder, after which the job ends as `artifact_lost`
  std::string reason;
  std::vector<std::string> sources;  // jobs whose artifacts are needed; retention keeps the first kMaxSources of them
  bool is_stored = false;            // an object storage has the files, too, and may send them before the holder
};
using Report = std::variant<LogAppend, EndReport, Release, DetailUpdate, AwaitInputs>;

// The life of a claim, from a queue to the stored end of a run.
class ClaimStore {
 public:
  virtual ~ClaimStore() = default;

  // Claims jobs from queues, marks them started and returns them, in one atomic step for the whole call.
  virtual Result<ClaimReply> claim(const ClaimRequest&) = 0;
  // REQUIRES: all claims belong to this context. Returns one result for each, in order. An expired lease cannot be
  // renewed and is stale.
  virtual Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) = 0;
  // Executes the reports in order in one round trip. The outer error means that any of them may have been executed:
  // repeat all. A repeated end with the same content succeeds again; another end for an ended job is `conflict`; a
  // claim that is not live is `stale_claim`.
  virtual Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) = 0;
  // report() in two halves, for callers that must not block. begin_report() sends the reports and returns the
  // descriptor that becomes readable with the replies, or nullopt if sending would block or has failed; then call
  // report(). finish_report() waits for the replies. It must be called with the same context and reports, before any
  // other call.
  virtual std::optional<int> begin_report(Id, std::span<const Report>) { return std::nullopt; }
  virtual Result<std::vector<Result<void>>> finish_report(Id context, std::span<const Report> reports) {
    return report(context, reports);
  }
};

}  // namespace mycojobs
