// Port: where records, queues, claims and logs live. Two implementations, one contract suite (tests/contract):
// Redis (agent/store/redis_store.h) and in memory (agent/store/memory_store.h). Protocol: docs/protocol.md.
//
// Threads: a Store and a Waiter belong to one thread each (only Waiter::wake() may be called from any thread);
// a StoreFactory may be used from any.
// Errors: unavailable (the server is away; the call may or may not have happened, and every call here may be repeated),
// stale_claim, conflict, not_found, invalid, denied (password), unsupported (server too old; `databases` too small).
// Time: every moment that is compared is the store's own; moments of this host never enter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mycojobs/job_end.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// The right to report on a job. token is known to its owner alone: the store keeps a hash.
struct ClaimRef {
  Id context = 0;
  std::string job_key;
  std::string claim_id;
  std::string token;  // 64 hex characters
};

struct ClaimRequest {
  Id context = 0;
  Id runner = 0;
  std::vector<std::string> queues;              // list keys; taken from in this order
  std::uint32_t max_jobs = 1;                   // 1 to 64
  std::uint64_t max_bytes = 8ULL << 20;         // records together; one job is always returned, however large
  std::uint64_t max_script_bytes = 4ULL << 20;  // larger: dead letter
  std::uint32_t max_deliveries = 3;             // this many claims without a reported end: dead letter crash_loop
  std::uint32_t lease_ms = 30000;
};

struct Claimed {
  ClaimRef ref;
  std::string queue;
  std::uint64_t epoch = 0;  // the job's fencing number: grows with every claim of the job
  std::uint32_t attempt = 1, deliveries = 1;
  Fields record;  // the whole hash, after the claim's own writes
};

struct ClaimReply {
  std::vector<Claimed> jobs;
  std::uint32_t set_aside = 0;  // entries dead-lettered, recorded as anomalies, or parked until their record appears
};

enum class Renewal { renewed, stale, cancel };  // cancel: renewed, and somebody asked to cancel the job

struct LogAppend {
  ClaimRef claim;
  std::vector<Log> lines;  // seq rising; a line whose seq is stored already is passed over
};
struct EndReport {
  ClaimRef claim;
  JobEnd end;
};
struct Release {  // the run says nothing about the job (lost launcher): back to its queue, to be claimed next
  ClaimRef claim;
  std::string reason;
  bool ran = true;  // false: nothing of the job was started, so it is not counted as a delivery
};
using Report = std::variant<LogAppend, EndReport, Release>;

struct Lease {
  std::string job_key;
  std::uint64_t until_ms = 0;
};

struct DeadLetter {
  std::string job_key, queue, reason;  // reason: no_record, wrong_type, bad_record, crash_loop, too_large, ...
  std::uint64_t at_ms = 0;
};

struct LogPage {
  std::vector<Log> lines;
  bool ended = false;  // no line will follow
};

// Who holds a runner id.
struct RunnerHold {
  std::string instance;       // random, new with every start
  std::string host, boot_id;  // boot_id also tells pid namespaces apart
  std::int64_t pid = 0;
};

struct MessageIntake {
  std::vector<std::string> job_keys;
  bool repeated = false;  // this message was taken before: nothing was changed
};

struct ServerFacts {
  std::string product, version, run_id;  // "redis" "7.0.15"
  std::uint32_t databases = 0;
  std::string appendonly, appendfsync, maxmemory_policy;  // empty: the server does not let us read it
  bool persistence_error = false, cluster = false, replica = false;
};

class Store {
 public:
  virtual ~Store() = default;

  // Takes jobs off queues, marks them started and returns them: one atomic step for the whole call.
  virtual Result<ClaimReply> claim(const ClaimRequest&) = 0;
  // All of one context. One answer each, in order. A lease that has expired is stale: it cannot be revived.
  virtual Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) = 0;
  // In order, in one trip. The outer error means that any of them may have happened: repeat all. An end that is
  // repeated alike is answered alike; another end for an ended job is `conflict`; a claim that is not live is
  // `stale_claim`.
  virtual Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) = 0;

  // Live claims and when their leases end.
  virtual Result<std::vector<Lease>> leases(Id context) = 0;
  // Makes the job claimable again if its lease still ends at until_ms and that moment has passed. false: it does not.
  virtual Result<bool> expire(Id context, const Lease&) = 0;
  // Pushes back entries whose record has appeared, dead-letters those that waited longer than wait_ms. Returns how many
  // changed.
  virtual Result<std::uint32_t> sweep_missing(Id context, std::uint32_t wait_ms) = 0;

  // Writes the record and pushes its key onto its queue. id 0: the next free one of that caller. An id that exists with
  // the same script, type, environment, timeout and dependencies is returned as it is; with other content: conflict.
  virtual Result<Job> submit(const Job&) = 0;
  // A persistent wish: a queued job ends as cancelled here, a claimed one by its owner (Renewal::cancel), an ended one
  // is left alone. Error not_found.
  virtual Result<void> cancel(Id context, const std::string& job_key) = 0;

  virtual Result<Fields> load(Id context, const std::string& key) = 0;  // a hash; not_found; invalid: another type
  virtual Result<void> save(Id context, const std::string& key, const Fields&) = 0;  // sets these fields of a hash
  // Keys that begin with prefix, in no order, each once, at most max.
  virtual Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) = 0;
  virtual Result<std::uint64_t> queue_length(Id context, const std::string& queue) = 0;
  virtual Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) = 0;
  virtual Result<std::vector<std::string>> anomalies(Id context, std::size_t max) = 0;  // one line each, newest last
  // Lines after after_seq; waits up to wait_ms for the first one.
  virtual Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                               std::uint32_t wait_ms) = 0;

  // Holds runner:<id> for ttl_ms and writes its record. conflict with the present holder in `held_by` if it is another
  // instance that is still within its time, unless that instance is `replaces`.
  virtual Result<void> hold_runner(Id context, const Runner&, const RunnerHold& self, std::uint32_t ttl_ms,
                                   const std::string& replaces, RunnerHold& held_by) = 0;
  virtual Result<void> release_runner(Id context, Id runner, const RunnerHold& self) = 0;

  // Durable half of a topic: message keys waiting there, oldest first.
  virtual Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) = 0;
  // Stores the message if fields are given, puts its key on the topic's list and publishes the hint.
  virtual Result<void> topic_send(Id context, const std::string& topic, const std::string& message_key,
                                  const Fields& message) = 0;
  // Turns a message's jobs into records and queue entries, marks the message acknowledged and takes it off the topic's
  // list: one atomic step, once per message. The message becomes processed (or error) with the end of its last job.
  virtual Result<MessageIntake> take_message(Id context, const std::string& topic, const std::string& message_key,
                                             std::span<const Job> jobs, const std::string& queue) = 0;
  // The message cannot be used: status error with this reason, off the topic's list.
  virtual Result<void> refuse_message(Id context, const std::string& topic, const std::string& message_key,
                                      const std::string& reason) = 0;

  virtual Result<ServerFacts> facts() = 0;
  virtual Result<std::uint64_t> now_ms() = 0;  // the store's clock
};

struct Woken {
  bool work = false;               // at least one of the queues has an entry: claim
  std::vector<std::string> hints;  // payloads published on the topic: message keys, "cancel:<job key>"
  bool reconnected = false;        // hints may have been missed: look at topic_pending
};

// Waits for work without being able to lose or strand any.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns when a queue has an entry (only if for_work), a hint came, wake() was called, or after timeout_ms.
  virtual Result<Woken> wait(std::uint32_t timeout_ms, bool for_work) = 0;
  virtual void wake() = 0;  // any thread, also from a signal's thread; remembered until the next wait()
};

class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual Result<std::unique_ptr<Store>> open() = 0;
  virtual Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                      const std::string& topic) = 0;
};

}  // namespace mycojobs
