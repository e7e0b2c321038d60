// What a store shows of itself to those who look, explain, verify and rebuild (mycojobs/store.h).
#pragma once

#include <cstdint>
#include <optional>
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

// Everything that the store knows about where a job is, read in one atomic step.
struct JobPlaces {
  std::string job_key;
  std::string record_type;  // hash; none; else another client's doing
  Fields record;            // without script, result, error_info, inputs
  std::string claim_type;   // hash; none; else another client's doing
  ClaimView claim;
  std::uint32_t in_queue = 0;  // how often its key stands in its queue's list; only if asked for
  bool in_priority = false;    // beside the list, by priority
  std::optional<std::uint64_t> lease_until_ms, due_ms, check_ms;  // in the index of leases, delays, prerequisites
  std::vector<std::string> waits_for;                             // jobs that it is parked on
  bool held = false;                                              // parked on its concurrency key
  bool takes_slot = false;                                        // counted as running under its concurrency key
  bool missing = false;                                           // an entry of it waits for its record
  bool in_ended = false;                                          // in the index of ended jobs
  bool in_jobs = false;                                           // in the index by what happened last
  bool log_ended = false;                                         // its log has its last entry
  std::uint64_t now_ms = 0;
};

// What a journal says of a job; the store makes its claim and its places so.
struct Repair {
  ClaimView claim;                  // as the facts have it
  std::uint64_t due_ms = 0;         // of a delayed job
  std::uint64_t last_revision = 0;  // of the facts that were read; 0: none (a bare record)
  std::uint64_t journal_head = 0;   // up to which revision its queue's journal was read; 0: there is none
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
  std::string after = {};  // JobsPage::after of the page before
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

struct RepairReply {
  std::vector<std::string> differences;  // one line each; mended unless it was a dry run
  bool moved = false;                    // it has newer facts: read its journal again
};

// Who holds a runner id.
struct RunnerHold {
  std::string instance;       // random, new with every start
  std::string host, boot_id;  // boot_id also tells pid namespaces apart
  std::int64_t pid = 0;
};

struct RunnerInfo {
  Runner runner;
  RunnerHold hold;            // empty: nobody holds the id
  std::uint64_t held_ms = 0;  // for how long still, by the store's clock; 0: its time is over, it is dead or silent
  std::uint32_t claims = 0;   // live claims of it
};

}  // namespace mycojobs
