// What a store shows of itself to those who look, explain, verify and rebuild (mycojobs/store.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mycojobs/records.h"

namespace mycojobs {

struct DeadLetter {
  std::string id;                      // of the entry in the list of dead letters
  std::string job_key, queue, reason;  // reason: no_record, wrong_type, bad_record, crash_loop, too_large, ...
  std::uint64_t at_ms = 0;
};

struct QueueInfo {
  std::string queue;              // its key
  std::uint64_t length = 0;       // entries of the list
  std::uint64_t prioritised = 0;  // entries beside the list: jobs with a priority
  bool paused = false;
  std::uint64_t journal_head = 0;  // revision of the latest fact; 0: none
  std::uint64_t facts = 0;         // in the journal now
  std::uint64_t horizon_ms = 0;    // jobs that ended before this moment may have left the journal
  std::string wrong_type = {};     // what stands at its key instead of a list, another client's: "string"
};

// The queues that a survey is to look at.
struct KnownQueues {
  std::vector<std::string> journals;         // keys of those that have a journal
  std::set<std::string, std::less<>> types;  // that runners say they serve
};

// What a context holds, in numbers, read in one step.
struct Survey {
  struct Queue {
    std::string queue;         // its key
    std::uint64_t length = 0;  // with those beside the list
    // How long the next one has waited; 0: the queue is empty; nothing: its record does not say since when.
    std::optional<std::uint64_t> waiting_ms;
    bool paused = false;
  };
  std::vector<Queue> queues;
  std::uint64_t live = 0, delayed = 0, prerequisites = 0, ended = 0;  // jobs
  std::uint64_t dead_letters = 0, active_flows = 0, outbox = 0, inbox = 0;
};

// One fact of a queue's dispatch journal. Kinds: scheduled claimed heartbeat parked queued released expired retry
// completed failed cancelled dead_lettered requeued planned replanned (domain/dispatch_journal.h says what each carries
// and means).
struct Fact {
  std::uint64_t revision = 0;  // from 1, without gaps when written; facts of retired jobs are taken out
  std::uint64_t at_ms = 0;
  std::string kind, job_key;
  Fields more;
};

// What the store holds of a job's claim (mj:claim:<job key>).
struct ClaimView {
  // empty (never claimed: another client pushed it), queued, live, delayed, waiting (dependends), prerequisites, held
  // (by its concurrency key), ended, planned (a flow's, in no queue until the flow says so)
  std::string state;
  std::string claim_id, token_hash, queue, instance;
  std::string reason;                      // how it got back to its queue: released, expired, retry, requeued
  std::string status, detail, end_digest;  // once ended
  std::string message, concurrency_key, idempotency_key;
  std::string flow;  // that it is of: "<context> <id>"
  std::uint64_t epoch = 0, lease_ms = 0, until_ms = 0, ended_ms = 0, waiting_since_ms = 0;
  std::uint32_t attempt = 0, deliveries = 0;
  Id runner = 0;
  bool cancel = false;    // somebody wants it cancelled
  bool leftover = false;  // its queue entry is still there and will be dropped in silence
  bool present = false;
  std::vector<std::uint64_t> revisions;  // of its facts in its queue's journal, rising
};

// How a job has ended. Any client may write to its record; the end has left a digest of what it wrote beside it.
struct EndedJob {
  enum class Record {
    unknown,  // nothing beside the record says how it ended
    holds,    // it says what the end has written
    changed   // somebody has written to it since
  };
  Fields fields;  // the record
  Record record = Record::unknown;
  bool ended = false;          // by what stands beside the record; if nothing does, by the record
  std::string status, detail;  // likewise
  std::string claim_id;        // whose owner has ended it; empty: nobody's
  std::string idempotency_key;
  Id runner = 0;
};

// Everything that the store knows about where a job is, read in one atomic step.
struct JobPlaces {
  std::string job_key;
  std::string record_type;  // hash; none; else another client's doing
  Fields record;            // without script, result, error_info, inputs
  std::string claim_type;   // hash; none; else another client's doing
  ClaimView claim;
  Fields claim_fields;  // the claim as it stands there
  // Of a whole look alone, which is the one with positions: how often its key stands in its queue's list, what it waits
  // for if it is parked on other jobs, and a digest of the look, by which a Repair knows that nothing has moved.
  std::uint32_t in_queue = 0;
  struct Dependency {
    std::string job;
    bool asked = false;  // its record names it
    bool ended = false;
    bool waited = false;  // the job is parked on it
    bool wakes = false;   // and its end will wake the job
  };
  std::vector<Dependency> dependencies;
  std::string seen;
  bool in_priority = false;                                       // beside the list, by priority
  std::optional<std::uint64_t> lease_until_ms, due_ms, check_ms;  // in the index of leases, delays, prerequisites
  std::vector<std::string> waits_for;                             // jobs that it is parked on
  bool held = false;                                              // parked on its concurrency key
  std::vector<std::string> held_by;                               // the keys that hold it; if held, its claim's first
  bool takes_slot = false;                                        // counted as running under its concurrency key
  std::vector<std::string> slots;                                 // the keys of which it takes a slot
  bool limited = false;                        // its record names a concurrency key whose slots can be counted
  bool slot_free = false;                      // of a held job: its key would let it run
  std::optional<std::uint64_t> wait_until_ms;  // in the index of those that may not wait longer
  std::uint64_t updated_s = 0;                 // updated_at of its record
  bool missing = false;                        // an entry of it waits for its record
  bool in_ended = false;                       // in the index of ended jobs
  bool in_jobs = false;                        // in the index by what happened last
  bool log_ended = false;                      // its log has its last entry
  std::uint64_t now_ms = 0;
};

// One thing that mends a job. Which one it takes says domain/invariants.h; the store only knows how it is done.
struct JobFix {
  enum class Kind {
    delete_claim,  // it is no hash
    set_claim,     // words: fields
    drop_claim,    // words: fields, of which the names count
    set_record,    // words: fields
    enter,         // place
    leave,         // place
    lease,         // a whole one from now on, for whoever runs it
    enqueue,       // to its queue from wherever it is; of: why, as its fact says it
    finish,        // as a dead letter; of: why, for people
    restore,       // a fact that says what its claim says; of: the revisions of its facts that are left
  };
  enum class Place { none, jobs, leases, delayed, prerequisites, ended, overdue, queue, priority, slots, held, waits };
  Kind kind = Kind::enter;
  Place place = Place::none;
  std::string of = {};      // the queue; the concurrency key of slots and held; the job that is waited for
  std::uint64_t score = 0;  // in the index of `place`
  Fields words = {};
  bool operator==(const JobFix&) const = default;
};
struct Repair {
  std::string seen;                // JobPlaces::seen of the look that asks for the fixes
  std::string queue;               // whose journal tells of the job
  std::uint64_t journal_head = 0;  // up to which revision that was read; 0: there is none
  std::vector<JobFix> fixes;       // in this order
};

// Where a message stands, seen in one step.
struct MessagePlaces {
  std::string message_key;
  std::string mark_type;            // hash; none; else another client's doing
  Fields mark;                      // names: store/keys.cpp
  std::vector<std::string> outbox;  // what of it is in mj:outbox: send, expire, cancel, answer, logs
  bool in_inbox = false;
  std::string seen;  // digest of the look, by which a repair knows that nothing has moved
};

// Which jobs to list. What is empty or 0 asks for nothing.
struct JobsWanted {
  std::optional<JobStatus> status;
  std::string state;  // a JobStatus, or what `detail` says
  std::string name;   // is in the job's name
  std::string script_type;
  std::optional<Id> caller;
  std::uint64_t since_ms = 0;  // something has happened to it since
  std::uint32_t max_looks = 1000;
  std::uint32_t max_jobs = 1000;  // of those that were looked at; what nobody has seen yet does not count
  std::string after = {};         // JobsPage::after of the page before
};
struct ListedJob {
  std::string key;
  std::uint64_t changed_us = 0;  // when something happened to it last
  std::string type;              // of the key: hash; else another client's doing
  Fields record;                 // without script, result, error_info, inputs
};
struct JobsPage {
  std::vector<ListedJob> jobs;  // what happened last comes first
  // On the first page: jobs that other clients have pushed and nobody has seen yet; their moment is the record's own.
  std::vector<ListedJob> unseen;
  std::uint64_t looked_at = 0;
  std::string after;  // for the next page; empty: this is the last one
};

// How a context is, in numbers.
struct QueueTally {
  std::string queue;  // its key
  std::uint64_t length = 0, prioritised = 0;
  bool paused = false;
  std::string next;                 // the job that has waited longest of those that come next; empty: none
  std::uint64_t next_since_ms = 0;  // since when it waits; 0: its record does not say
};
struct Tally {
  std::uint64_t now_ms = 0, changed_us = 0;  // the store's clock; when something happened to a job last
  std::uint64_t jobs = 0, running = 0, delayed = 0, prerequisites = 0, held = 0, missing = 0, ended = 0;
  std::uint64_t dead = 0, anomalies = 0, refusals = 0, notices = 0, outbox = 0, inbox = 0;
  std::uint64_t flows = 0, flows_active = 0;
  std::vector<std::uint64_t> ends;  // jobs that ended in each slot of time, the latest first
  std::vector<QueueTally> queues;   // of the first 200 by name
};

// Who holds a runner id.
struct RunnerHold {
  std::string instance;       // random, new with every start
  std::string host, boot_id;  // boot_id also tells pid namespaces apart
  std::int64_t pid = 0;
};

// Somebody asked for what the table of rights does not give (agent/domain/rights.h).
// Whose a public key is, by the records of actors.
struct KeyOwner {
  std::uint32_t actors = 0;  // that name it; 2 stands for more, too
  Id id = 0;                 // of the only one, and its record
  Fields record = {};
  std::uint64_t looked_ms = 0;  // when the last look through all records began; 0: none was ended yet
  bool looked_now = false;      // it was made for this call
};

struct RefusalNote {
  std::uint64_t number = 0;  // counts the refusals of the context, from 1
  std::uint64_t at_ms = 0;   // by the store's clock
  Id actor = 0;
  std::string action, thing, list;  // "steer", "flow 7" (empty: all of the context), "admins"
};

struct RunnerInfo {
  Runner runner;
  RunnerHold hold;            // empty: nobody holds the id
  std::uint64_t held_ms = 0;  // for how long still, by the store's clock; 0: its time is over, it is dead or silent
  std::uint32_t claims = 0;   // live claims of it
};

}  // namespace mycojobs
