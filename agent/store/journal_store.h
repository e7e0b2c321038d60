// Journals of facts, states and repairs of jobs and messages for explain, verify and rebuild, status counts, and denied
// requests. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// One fact of a queue's dispatch journal. [fact_kind] of model/states.toml has the kinds with their meanings and
// fields.
struct Fact {
  std::uint64_t revision = 0;  // from 1, without gaps when written; facts of retired jobs are deleted
  std::uint64_t at_ms = 0;
  std::string kind, job_key;
  Fields fields;
};

// Claim data of a job (mj:claim:<job key>).
struct ClaimView {
  // empty (another client pushed the job, which was never claimed), queued, live, delayed, waiting (for dependencies),
  // prerequisites, held (by its concurrency key), ended, planned (owned by a flow and in no queue yet)
  std::string state;
  std::string claim_id, token_hash, queue, instance;
  std::string reason;                      // reason of the last return to the queue: released, expired, retry, requeued
  std::string status, detail, end_digest;  // set for an ended job
  std::string message, concurrency_key, idempotency_key;
  std::string flow;  // flow of the job: "<context> <id>"
  std::uint64_t epoch = 0, lease_ms = 0, lease_until_ms = 0, ended_ms = 0, waiting_since_ms = 0;
  std::uint32_t attempt = 0, deliveries = 0;
  Id runner = 0;
  bool cancel_requested = false;  // cancellation was requested
  bool has_stale_entry = false;   // a stale queue entry of the job exists and will be dropped silently
  bool exists = false;
  std::vector<std::uint64_t> revisions;  // revisions of its facts in the queue's journal, ascending
};
ClaimView parse_claim(const Fields&);  // REQUIRES: the fields of mj:claim:<job key>

// All data of the store about a job's state, read in one atomic step.
struct JobStoreState {
  std::string job_key;
  std::string record_type;  // hash or none; another type was written by another client
  Fields record;            // without script, result, error_info, inputs
  std::string claim_type;   // hash or none; another type was written by another client
  ClaimView claim;
  Fields claim_fields;  // unparsed fields of the claim
  // The next three members are set by a full inspection only: the number of entries in the queue's list, the
  // dependencies of a parked job, and a digest of the inspection, by which a Repair detects changes.
  std::uint32_t queue_entry_count = 0;
  struct Dependency {
    std::string job;
    bool in_record = false;  // the job's record names the dependency
    bool ended = false;
    bool is_parked = false;  // the job is parked on it
    bool wakes_job = false;  // the end of the dependency will queue the job
  };
  std::vector<Dependency> dependencies;
  std::string digest;
  bool in_priority_index = false;                                 // in the priority index instead of the list
  std::optional<std::uint64_t> lease_until_ms, due_ms, check_ms;  // in the indexes of leases, delays, prerequisites
  std::vector<std::string> awaited_jobs;                          // jobs on which this job is parked
  bool is_held = false;                                           // parked on its concurrency key
  std::vector<std::string> held_by_keys;       // keys that hold the job; for a held job the claim's key is first
  bool occupies_slot = false;                  // counted as running under its concurrency key
  std::vector<std::string> slot_keys;          // keys of which the job occupies a slot
  bool has_limit = false;                      // the record has a concurrency key whose running jobs can be counted
  bool has_free_slot = false;                  // the concurrency key of a held job has a free slot
  std::optional<std::uint64_t> wait_until_ms;  // in the index of queue time-outs
  std::uint64_t updated_s = 0;                 // updated_at of the record
  bool awaits_record = false;                  // a queue entry waits for the record
  bool in_ended_index = false;                 // in the index of ended jobs
  bool in_job_index = false;                   // in the index by last change
  bool log_ended = false;                      // the log has its final entry
  std::uint64_t now_ms = 0;
};

// One repair step of a job. inspect/invariants.h decides which steps are needed; the store executes them.
struct JobFix {
  enum class Kind {
    delete_claim,        // for a claim that is not a hash
    set_claim,           // sets `fields`
    drop_claim,          // fields: names of the fields to delete; the values are ignored
    set_record,          // sets `fields`
    add_to_index,        // adds the job to `index`
    remove_from_index,   // removes the job from `index`
    set_lease,           // sets a new lease of full length for the current owner
    enqueue,             // moves the job to its queue; argument: the reason, for the fact
    end_as_dead_letter,  // ends the job as a dead letter; argument: the reason, for users
    append_fact,         // appends a fact with the state of the claim; argument: revisions of the remaining facts
  };
  enum class JobIndex {
    none,
    jobs,
    leases,
    delayed,
    prerequisites,
    ended,
    overdue,
    queue,
    priority,
    slots,
    held,
    waits
  };
  Kind kind = Kind::add_to_index;
  JobIndex index = JobIndex::none;
  std::string argument = {};  // for indexes: the queue, the concurrency key (slots, held), or the awaited job
  std::uint64_t score = 0;    // score of the entry in `index`
  Fields fields = {};
  bool operator==(const JobFix&) const = default;
};
struct Repair {
  std::string inspection_digest;   // JobStoreState::digest of the inspection that the fixes are based on
  std::string queue;               // queue whose journal contains the job's facts
  std::uint64_t journal_head = 0;  // last journal revision that was read, or 0 if there is no journal
  std::vector<JobFix> fixes;       // in order of execution
};

// State of a message, read in one step.
struct MessageStoreState {
  std::string message_key;
  std::string mark_type;            // hash or none; another type was written by another client
  Fields mark;                      // field names: store/keys.toml
  std::vector<std::string> outbox;  // kinds of its entries in mj:outbox: send, expire, cancel, answer, logs
  bool in_inbox = false;
  std::string digest;  // digest of the inspection, by which a repair detects changes
};

// Counts of a queue for status displays.
struct QueueTally {
  std::string queue;  // key of the queue
  std::uint64_t length = 0, prioritised = 0;
  bool paused = false;
  std::string next_job;                     // longest waiting job among the next jobs, or empty if no job waits
  std::uint64_t next_waiting_since_ms = 0;  // start of the wait of next_job, or 0 if it is unknown
};
// Counts of a context for status displays.
struct Tally {
  std::uint64_t now_ms = 0, changed_us = 0;  // the store's clock; time of the last change of a job
  std::uint64_t jobs = 0, running = 0, delayed = 0, prerequisites = 0, held = 0, missing = 0, ended = 0;
  std::uint64_t dead_letters = 0, anomalies = 0, refusals = 0, notices = 0, outbox = 0, inbox = 0;
  std::uint64_t flows = 0, active_flows = 0;
  std::vector<std::uint64_t> ended_per_slot;  // ended jobs per time slot, latest slot first
  std::vector<QueueTally> queues;             // the first 200 queues by name
};

// A request that the table of rights denied (agent/security/rights.toml).
struct RefusalNote {
  std::uint64_t number = 0;  // sequence number of the denial in the context, from 1
  std::uint64_t at_ms = 0;   // by the store's clock
  Id actor = 0;
  std::string action, resource, access_list;  // for example "steer", "flow 7" (empty for the whole context), "admins"
};

// Facts, index entries and anomalies, which explain, verify and rebuild read; repairs of jobs and messages; status
// counts; and the list of denied requests.
class JournalStore {
 public:
  explicit JournalStore(StoreConnection& connection) : connection_(connection) {}

  // Returns at most max facts after a revision, in order.
  Result<std::vector<Fact>> journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                    std::uint32_t max);
  // Returns the facts at these revisions, in this order, without missing facts. Needs few round trips for any number.
  Result<std::vector<Fact>> journal_at(Id context, const std::string& queue, std::span<const std::uint64_t> revisions);
  // Returns one result for each job, in order. with_positions: a full inspection, which is slow if a queue is long.
  Result<std::vector<JobStoreState>> job_states(Id context, std::span<const std::string> job_keys, bool with_positions);
  // Applies all fixes in one step. Returns false and changes nothing if the job has changed since the inspection.
  Result<bool> repair(Id context, const std::string& job_key, const Repair&);
  // Returns one result for each message, in order.
  Result<std::vector<MessageStoreState>> message_states(Id context, std::span<const std::string> message_keys);
  // Adds entries of these kinds to mj:outbox ("inbox": to mj:inbox). Returns false and changes nothing if the message
  // has changed since the inspection.
  Result<bool> repair_message(Id context, const std::string& message_key, const std::string& inspection_digest,
                              const std::vector<std::string>& kinds);
  // Counts index entries without reading jobs, so that the cost does not depend on their number. slots: at most 360.
  Result<Tally> tally(Id context, std::uint64_t slot_ms, std::uint32_t slots);
  Result<std::vector<std::string>> anomalies(Id context, std::size_t max);  // one line each, newest last
  // Records a request that was denied; the newest 1000 are kept.
  Result<void> record_refusal(Id context, const RefusalNote&);
  Result<std::vector<RefusalNote>> refusals(Id context, std::size_t max);  // newest first

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
