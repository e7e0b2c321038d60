// Views of a store's content for lists, explain, verify and rebuild (store/store.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/records.h"

namespace mycojobs {

// An entry of the list of dead letters.
struct DeadLetter {
  std::string id;                      // in the list of dead letters
  std::string job_key, queue, reason;  // reason: no_record, wrong_type, bad_record, crash_loop, too_large, ...
  std::uint64_t at_ms = 0;
};

// State of a queue.
struct QueueInfo {
  std::string queue;              // key of the queue
  std::uint64_t length = 0;       // entries of the list
  std::uint64_t prioritised = 0;  // entries outside the list: jobs with a priority
  bool paused = false;
  std::uint64_t journal_head = 0;  // revision of the latest fact; 0: there is no fact
  std::uint64_t facts = 0;         // number of facts in the journal
  std::uint64_t horizon_ms = 0;    // facts of jobs that ended before this time may have been removed
  std::string wrong_type = {};     // type of another client's value at the key, if it is not a list: "string"
};

// Queues to be included in a survey.
struct KnownQueues {
  std::vector<std::string> journals;         // keys of queues with a journal
  std::set<std::string, std::less<>> types;  // script types that runners serve
};

// Counts of a context, read in one step.
struct Survey {
  struct Queue {
    std::string queue;         // key of the queue
    std::uint64_t length = 0;  // including jobs with a priority
    // Waiting time of the next job; 0: the queue is empty; nullopt: the job's record has no time.
    std::optional<std::uint64_t> waiting_ms;
    bool paused = false;
  };
  std::vector<Queue> queues;
  std::uint64_t live = 0, delayed = 0, prerequisites = 0, ended = 0;  // numbers of jobs
  std::uint64_t dead_letters = 0, active_flows = 0, outbox = 0, inbox = 0;
};

// One fact of a queue's dispatch journal. Kinds: scheduled claimed heartbeat parked queued released expired retry
// completed failed cancelled dead_lettered requeued planned replanned; jobs/dispatch_journal.h defines their meaning
// and fields.
struct Fact {
  std::uint64_t revision = 0;  // from 1, without gaps when written; facts of retired jobs are deleted
  std::uint64_t at_ms = 0;
  std::string kind, job_key;
  Fields more;
};

// Claim data of a job (mj:claim:<job key>).
struct ClaimView {
  // empty (never claimed: pushed by another client), queued, live, delayed, waiting (for dependends), prerequisites,
  // held (by its concurrency key), ended, planned (owned by a flow and in no queue yet)
  std::string state;
  std::string claim_id, token_hash, queue, instance;
  std::string reason;                      // reason for its return to the queue: released, expired, retry, requeued
  std::string status, detail, end_digest;  // set for an ended job
  std::string message, concurrency_key, idempotency_key;
  std::string flow;  // flow of the job: "<context> <id>"
  std::uint64_t epoch = 0, lease_ms = 0, until_ms = 0, ended_ms = 0, waiting_since_ms = 0;
  std::uint32_t attempt = 0, deliveries = 0;
  Id runner = 0;
  bool cancel = false;    // cancellation was requested
  bool leftover = false;  // a stale queue entry of the job exists and will be dropped silently
  bool present = false;
  std::vector<std::uint64_t> revisions;  // revisions of its facts in the queue's journal, ascending
};

// End of a job, verified against the record. Any client may write to the record; a digest of the end's fields is stored
// separately.
struct EndedJob {
  enum class Record {
    unknown,  // there is no separate information about the end
    holds,    // the record has the values of the end
    changed   // the record was changed after the end
  };
  Fields fields;  // fields of the record
  Record record = Record::unknown;
  bool ended = false;          // from the separately stored claim, or else from the record
  std::string status, detail;  // from the same source
  std::string claim_id;        // claim that has ended the job; empty: ended by the system
  std::string idempotency_key;
  Id runner = 0;
};

// All data of the store about a job's state, read in one atomic step.
struct JobStoreState {
  std::string job_key;
  std::string record_type;  // hash or none; another type was written by another client
  Fields record;            // without script, result, error_info, inputs
  std::string claim_type;   // hash or none; another type was written by another client
  ClaimView claim;
  Fields claim_fields;  // unparsed fields of the claim
  // The next members are set by a full inspection (positions) only: number of entries in the queue's list, dependencies
  // of a parked job, and a digest of the inspection, by which a Repair detects changes.
  std::uint32_t in_queue = 0;
  struct Dependency {
    std::string job;
    bool asked = false;  // named in the job's record
    bool ended = false;
    bool waited = false;  // the job is parked on it
    bool wakes = false;   // its end will wake the job
  };
  std::vector<Dependency> dependencies;
  std::string seen;
  bool in_priority = false;                                       // in the priority index instead of the list
  std::optional<std::uint64_t> lease_until_ms, due_ms, check_ms;  // in the indexes of leases, delays, prerequisites
  std::vector<std::string> waits_for;                             // jobs on which this job is parked
  bool held = false;                                              // parked on its concurrency key
  std::vector<std::string> held_by;            // keys that hold the job; for a held job the claim's key is first
  bool takes_slot = false;                     // counted as running under its concurrency key
  std::vector<std::string> slots;              // keys of which the job occupies a slot
  bool limited = false;                        // the record has a concurrency key with a countable limit
  bool slot_free = false;                      // the concurrency key of a held job has a free slot
  std::optional<std::uint64_t> wait_until_ms;  // in the index of queue time-outs
  std::uint64_t updated_s = 0;                 // updated_at of the record
  bool missing = false;                        // a queue entry waits for the record
  bool in_ended = false;                       // in the index of ended jobs
  bool in_jobs = false;                        // in the index by last change
  bool log_ended = false;                      // the log has its final entry
  std::uint64_t now_ms = 0;
};

// One repair step of a job. inspect/invariants.h decides which steps are needed; the store executes them.
struct JobFix {
  enum class Kind {
    delete_claim,  // for a claim that is not a hash
    set_claim,     // words: fields to set
    drop_claim,    // words: fields to delete; values are ignored
    set_record,    // words: fields to set
    enter,         // adds to `place`
    leave,         // removes from `place`
    lease,         // sets a new lease of full length for the current owner
    enqueue,       // moves the job to its queue; of: the reason, for the fact
    finish,        // ends the job as a dead letter; of: the reason, for users
    restore,       // appends a fact with the state of the claim; of: revisions of its remaining facts
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
  Kind kind = Kind::enter;
  JobIndex place = JobIndex::none;
  std::string of = {};      // the queue; the concurrency key for slots and held; the awaited job
  std::uint64_t score = 0;  // in the index `place`
  Fields words = {};
  bool operator==(const JobFix&) const = default;
};
struct Repair {
  std::string seen;                // JobStoreState::seen of the inspection that the fixes are based on
  std::string queue;               // queue whose journal contains the job's facts
  std::uint64_t journal_head = 0;  // last journal revision that was read; 0: there is no journal
  std::vector<JobFix> fixes;       // in order of execution
};

// State of a message, read in one step.
struct MessageStoreState {
  std::string message_key;
  std::string mark_type;            // hash or none; another type was written by another client
  Fields mark;                      // field names: store/keys.cpp
  std::vector<std::string> outbox;  // kinds of its entries in mj:outbox: send, expire, cancel, answer, logs
  bool in_inbox = false;
  std::string seen;  // digest of the inspection, by which a repair detects changes
};

// Filter of a job list. Empty or 0 members do not restrict the list.
struct JobFilter {
  std::optional<JobStatus> status;
  std::string state;  // a JobStatus, or a value of `detail`
  std::string name;   // substring of the job's name
  std::string script_type;
  std::optional<Id> caller;
  std::uint64_t since_ms = 0;  // changed at or after this time
  std::uint32_t max_scanned = 1000;
  std::uint32_t max_jobs = 1000;  // from the scanned jobs; unseen jobs are not counted
  std::string after = {};         // JobsPage::after of the previous page
};
// A row of a job list.
struct ListedJob {
  std::string key;
  std::uint64_t changed_us = 0;  // time of the last change
  std::string type;              // type of the key: hash; another type was written by another client
  Fields record;                 // without script, result, error_info, inputs
};
// Result of RecordStore::jobs().
struct JobsPage {
  std::vector<ListedJob> jobs;  // most recent change first
  // On the first page: jobs of other clients that no agent has processed yet. Their times are those of the record.
  std::vector<ListedJob> unseen;
  std::uint64_t looked_at = 0;
  std::string after;  // argument for the next page; empty: this is the last page
};

// Counts of a queue for status displays.
struct QueueTally {
  std::string queue;  // key of the queue
  std::uint64_t length = 0, prioritised = 0;
  bool paused = false;
  std::string next;                 // longest waiting job among the next jobs; empty: none
  std::uint64_t next_since_ms = 0;  // start of its wait; 0: unknown
};
// Counts of a context for status displays.
struct Tally {
  std::uint64_t now_ms = 0, changed_us = 0;  // the store's clock; time of the last change of a job
  std::uint64_t jobs = 0, running = 0, delayed = 0, prerequisites = 0, held = 0, missing = 0, ended = 0;
  std::uint64_t dead = 0, anomalies = 0, refusals = 0, notices = 0, outbox = 0, inbox = 0;
  std::uint64_t flows = 0, flows_active = 0;
  std::vector<std::uint64_t> ends;  // ended jobs per time slot, latest slot first
  std::vector<QueueTally> queues;   // the first 200 queues by name
};

// Process that holds a runner id.
struct RunnerHolder {
  std::string instance;       // random, new at every start
  std::string host, boot_id;  // boot_id also distinguishes pid namespaces
  std::int64_t pid = 0;
};

// Owner of a public key, from the records of actors.
struct KeyOwner {
  std::uint32_t actors = 0;  // number of actors with the key; 2 means two or more
  Id id = 0;                 // id of the only actor, whose record follows
  Fields record = {};
  std::uint64_t checked_ms = 0;  // start time of the last complete scan of all records; 0: no scan has completed
  bool checked_now = false;      // a scan was made for this call
};

// A request that the table of rights denied (agent/security/rights.h).
struct RefusalNote {
  std::uint64_t number = 0;  // sequence number of the denial in the context, from 1
  std::uint64_t at_ms = 0;   // by the store's clock
  Id actor = 0;
  std::string action, thing, list;  // for example "steer", "flow 7" (empty: the whole context), "admins"
};

// A runner's record and the state of its registration.
struct RunnerInfo {
  Runner runner;
  RunnerHolder hold;          // empty: the id is not held
  std::uint64_t held_ms = 0;  // remaining time of the hold, by the store's clock; 0: expired
  std::uint32_t claims = 0;   // number of live claims
};

}  // namespace mycojobs
