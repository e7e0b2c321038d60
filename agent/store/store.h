// Port: storage of records, queues, claims and logs. It is implemented on Redis (agent/store/redis/redis_store.h) and
// on the in-process imitation of Redis (tests/support/redis/memory_server.h); one contract suite tests both
// (tests/contract). Protocol: docs/protocol.md.
//
// Thread-safety: a Store and a Waiter are each used by one thread; only Waiter::wake() may be called from any thread. A
// StoreFactory is thread-safe.
//
// Errors: unavailable (the server cannot be reached; the call may have been executed, and every call here may be
// repeated), stale_claim, conflict, not_found, invalid, denied (password; rights of a claim), unsupported (server too
// old; `databases` too small). Times are compared by the store's own clock only, never by the clock of this host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/job_end.h"
#include "model/records.h"
#include "store/flow_store.h"
#include "store/object_store.h"
#include "store/store_views.h"
#include "store/workflow_store.h"

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
  Fields record;  // the whole hash, including the claim's own writes
};

// Result of ClaimStore::claim().
struct ClaimReply {
  std::vector<ClaimedJob> jobs;
  std::uint32_t skipped_entries = 0;  // entries that became dead letters or anomalies, or wait for their record
  std::vector<std::string> paused;    // queues of the request that are paused and should not be waited for
  // True if the call reached its bound, because of many entries that cannot run, before the queues were empty.
  bool has_more = false;
};

enum class Renewal { renewed, stale, cancel };  // cancel: renewed, and cancellation was requested

// Adds lines to the log of a claimed job.
struct LogAppend {
  ClaimRef claim;
  std::vector<Log> lines;  // seq ascending; a line whose seq is stored already is ignored
};
// Reports the end of a claimed job, or of its attempt.
struct EndReport {
  ClaimRef claim;
  JobEnd end;
  // Pause before the next attempt, if a failed attempt is to be retried. Ignored if cancellation was requested.
  std::optional<std::uint64_t> retry_after_ms = std::nullopt;
};
// Detail of a run that continues: running, unkillable.
struct DetailUpdate {
  ClaimRef claim;
  std::string detail;
};
// Returns a job to the front of its queue after a run without a result, for example after the launcher has died.
struct Release {
  ClaimRef claim;
  std::string reason;
  bool was_started = true;  // if nothing of the job was started, the claim does not count as a delivery
};
using Report = std::variant<LogAppend, EndReport, Release, DetailUpdate>;

// Lease of a live claim.
struct Lease {
  std::string job_key;
  std::uint64_t until_ms = 0;
  std::uint64_t lease_ms = 0;  // duration that the owner has chosen
};

// Time-driven work, done by any client: see LeaseStore::tick().
struct TickRequest {
  std::uint32_t missing_wait_ms = 2000;              // maximum wait of an entry for its record
  std::uint64_t retention_ms = 24ULL * 3600 * 1000;  // retention time of ended jobs; 0 means no limit
  std::uint64_t retention_count = 0;                 // maximum number of ended jobs; 0 means no limit
  std::uint32_t max_entries = 100;  // limit for each kind of work, since a running script blocks other clients
};
// Numbers of processed entries, by kind.
struct TickReply {
  std::uint32_t queued = 0;            // delayed jobs and retries that were queued
  std::uint32_t woken_dependents = 0;  // dependents of ended jobs that were too many for one step
  std::uint32_t missing_records = 0;   // entries whose record has appeared (queued) or not (dead letters)
  std::uint32_t timed_out = 0;         // jobs that exceeded their queue_timeout_ms and were ended
  std::uint32_t retired = 0;           // ended jobs past retention, deleted with their record, log and facts
  bool has_more = false;               // max_entries was reached: call again soon
  std::uint64_t next_due_ms = 0;       // time until the next delayed job is due, or 0 if no job is delayed
};

// A job with external prerequisites.
struct AwaitedPrerequisites {
  std::string job_key;
  std::vector<std::string> conditions;  // the job's `prerequisites`
  std::uint64_t waited_ms = 0;          // since the job began to wait, by the store's clock
  // Set for agents only: a coordinator has checked prerequisites in this context before. The coordinator may have
  // permissions that the agent lacks.
  bool coordinator_checks = false;
};

// Role that checks prerequisites. Agents check them only if no coordinator has checked for 5 s.
enum class CheckerRole { agent, coordinator };

// A notification of the end of a job or a flow. It is stored in the same step as the end.
struct Notice {
  std::string entry;       // entry in the store
  std::string record_key;  // job:12:2001, flow:33
  bool finished = false;
  std::uint64_t ended_us = 0;  // by the store's clock; identifies the notice together with record_key
  std::uint32_t attempts = 0;
  std::vector<std::string> reached_targets;  // digests of the targets that have received the notice
};
// Result of NoticeStore::due_notices().
struct DueNotices {
  std::vector<Notice> notices;
  std::uint64_t next_ms = 0;  // time until the next notice is due, or 0 if there is no notice
};
// Result of a delivery attempt. Without `retry`, all targets were reached, or the delivery has failed permanently
// (`permanent_error`).
struct NoticeResult {
  struct Retry {
    std::vector<std::string> reached_targets;
    std::uint64_t delay_ms = 0;
    bool counts_as_attempt = true;  // added to Notice::attempts
  };
  std::optional<Retry> retry;
  std::string permanent_error;  // text for the list of anomalies, set if the delivery has failed permanently
};

// Consecutive lines of the log of a job.
struct LogPage {
  std::vector<Log> lines;
  std::vector<std::uint64_t> skipped_seqs;  // line numbers that were skipped at the ends of earlier runs
  bool ended = false;                       // no line will follow
};

// A job of a message, with its present or future queue.
struct MessageJob {
  Job job;
  std::string queue;  // "queue:python", "mj:queue:runner20"
};
// Conversion of a received message into jobs.
struct AcceptMessage {
  std::string list;  // list that holds the message key: a topic or msg_in
  std::string message_key;
  std::vector<MessageJob> jobs;
  Id flow = 0;                            // the flow that was created from the message
  std::vector<std::string> origins = {};  // keys of the jobs in the sender's context, in the same order
};
// Result of accepting or routing a message.
struct AcceptedMessage {
  std::vector<std::string> job_keys;
  bool repeated = false;  // the message was accepted or sent before, and nothing was changed
};
// A message that is sent to another context, or received from one.
struct MessageState {
  // content_hash() (security/signatures.h); a message with the same key and another hash is a different message.
  std::string content_hash;
  Fields extra_fields;  // additional fields of the mark; names in store/keys.toml
};
// Request to send a message to another context.
struct RouteMessage {
  std::string message_key;
  MessageState mark;
  // Time limits for the delivery, from now, and for the answer, from the delivery. 0 means no limit.
  std::uint64_t delivery_timeout_ms = 0, result_timeout_ms = 0;
  std::vector<MessageJob> jobs;
};
// Result of MessageStore::receive_message().
enum class Arrival {
  stored,
  duplicate,            // the message was received before
  content_conflict,     // the sender has used this id for other content
  key_in_use,           // another message has this key
  inbox_full,           // too many messages wait
  sender_limit_reached  // too many messages of this sender wait, or they are too large
};
// An action for a sent message, with the message's mark.
struct OutboxEntry {
  std::string entry;  // "send message:12:101"
  std::string kind, message_key;
  Fields mark;
};
// Result of MessageStore::due_messages().
struct DueMessages {
  std::vector<OutboxEntry> outbox;
  std::vector<std::string> inbox;  // message keys
  std::uint64_t next_ms = 0;       // time until the next entry is due, or 0 if no entry waits
  std::uint64_t now_ms = 0;        // clock of Redis
};
// Result of an action of the outbox.
struct MailResult {
  enum class Kind { delivered, retry, failed, closed };
  Kind kind = Kind::closed;
  std::uint64_t retry_delay_ms = 0;  // for `retry`: time until the next attempt
  // If the kind is `failed`, both texts are written to the ends of the jobs. If the kind is `retry`, an empty reason
  // means that the attempt is not counted.
  std::string detail, reason;
  Fields extra_fields = {};  // additional fields for the mark
};
// End of a job in the answer to a message.
struct RemoteJobEnd {
  std::string job_key;
  Fields extra_fields;  // record fields, in addition to those of the end
  JobEnd end;
};
// Answer to a sent message.
struct AnswerMessage {
  std::string message_key, content_hash;
  std::string reason;  // reason of the rejection, or empty if the message was processed
  Fields fields;       // record fields of the message
  std::vector<RemoteJobEnd> jobs;
  bool is_last = true;        // false if the ends of more jobs follow in another answer
  std::string router_answer;  // for a message that carries a router's job: data of the answer, stored in the mark
};

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

// A record to be created.
struct NewRecord {
  std::string prefix;   // "actor:", "message:12:"
  std::string counter;  // name of the id counter: "actor", "message:12"
  Id id = 0;            // 0 allocates the next free id
  Fields fields;        // without id, created_at, updated_at
};
// Result of SubmitStore::create_record().
struct CreatedRecord {
  std::string key;
  Fields record;
  bool existed = false;
};

// Properties and settings of a Redis server.
struct StoreServerInfo {
  std::string product, version, run_id;  // "redis" "7.0.15"
  std::uint32_t databases = 0;
  std::vector<Id> used_databases;                         // databases other than 0 that hold keys, which are contexts
  std::string appendonly, appendfsync, maxmemory_policy;  // empty if the server does not permit reading the value
  bool persistence_error = false, cluster = false, replica = false;
};

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

// Expiry of leases and time-driven work.
class LeaseStore {
 public:
  virtual ~LeaseStore() = default;

  // Returns live claims and the ends of their leases.
  virtual Result<std::vector<Lease>> leases(Id context) = 0;
  // Makes the job claimable again if its lease still ends at until_ms and has expired, or ends further in the future
  // than a lease is long (the server's clock went back). REQUIRES: the caller has observed no renewal for a whole
  // lease. Returns false if neither holds.
  virtual Result<bool> expire(Id context, const Lease&) = 0;
  // Expires all live claims of an instance of a runner at once. REQUIRES: no process of the instance is left.
  virtual Result<std::vector<std::string>> expire_instance(Id context, Id runner, const std::string& instance) = 0;
  virtual Result<TickReply> tick(Id context, const TickRequest&) = 0;
};

// Jobs with external prerequisites.
class PrerequisiteStore {
 public:
  virtual ~PrerequisiteStore() = default;

  // Returns at most max jobs whose prerequisites are to be checked now. Each job is returned to one caller, and again
  // after redelivery_delay_ms.
  virtual Result<std::vector<AwaitedPrerequisites>> due_prerequisites(Id context, std::uint32_t max,
                                                                      std::uint32_t redelivery_delay_ms,
                                                                      CheckerRole) = 0;
  // Stores the result of a check. If failure_reason is empty, the prerequisites are met and the job is queued.
  // Otherwise they can never be met, and the job ends as error with the detail `prerequisite`.
  virtual Result<void> complete_prerequisites(Id context, const std::string& job_key,
                                              const std::string& failure_reason) = 0;
};

// Notifications of ends.
class NoticeStore {
 public:
  virtual ~NoticeStore() = default;

  // Returns at most max notices that are due. Each notice is returned to one caller, and again after
  // redelivery_delay_ms if complete_notice() was not called.
  virtual Result<DueNotices> due_notices(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms) = 0;
  virtual Result<void> complete_notice(Id context, const Notice&, const NoticeResult&) = 0;
};

// Creation and change of records, and requests of users for jobs.
class SubmitStore {
 public:
  virtual ~SubmitStore() = default;

  // Writes the record and queues the job at run_at_ms. Id 0 allocates the next free id of the caller. An id that exists
  // with the same content (see same_content()) is returned unchanged; with other content the error is `conflict`. An
  // idempotency_key that the caller has used before refers to its first job in the same way.
  virtual Result<Job> submit(const Job&) = 0;
  // Writes only the record: start_job() queues it, or a flow adopts it. Ids and conflicts as in submit().
  virtual Result<Job> create_job(const Job&) = 0;
  // submit() (if `queued`) or create_job() for many jobs. Processes as many jobs from the front as fit into one step of
  // the server, at least one, and writes all or none of these. The caller repeats the call with the remaining jobs.
  virtual Result<NewJobs> submit_batch(std::span<const Job>, bool queued) = 0;
  // Queues a job whose record is in no queue. A job that is in a queue or a flow, runs, or has run is not changed.
  // Error not_found.
  virtual Result<Job> start_job(Id context, const std::string& job_key) = 0;
  // Creates any other record. An existing record with that id is returned for comparison.
  virtual Result<CreatedRecord> create_record(Id context, const NewRecord&) = 0;
  // Sets these fields of an existing record and returns the record. An empty text removes a field. Errors: not_found;
  // conflict: another actor has this `pubkey`, as in create_record().
  virtual Result<Fields> change_record(Id context, const std::string& key, const Fields&) = 0;
  // Deletes an actor, context, runner, message or job with all data that the store keeps for it. Errors: not_found;
  // conflict: the record is in use; the message names the use.
  virtual Result<void> delete_record(Id context, const std::string& key) = 0;
  // Requests cancellation, which is stored permanently. An unclaimed job ends as cancelled in this call. A claimed job
  // is ended by its owner (Renewal::cancel). An ended job is not changed. Error not_found.
  virtual Result<void> cancel(Id context, const std::string& job_key) = 0;
  // Runs a job that ended as error again, as its next attempt, and removes its dead letter. Errors: not_found;
  // conflict: the job has not ended, has finished, or was cancelled, which is permanent.
  virtual Result<void> requeue(Id context, const std::string& job_key) = 0;
};

// Queues and dead letters.
class QueueStore {
 public:
  virtual ~QueueStore() = default;

  virtual Result<std::vector<QueueInfo>> queues(Id context) = 0;  // queues with entries, facts or a pause; by name
  // Pauses or resumes a queue. Returns true if this call changed the state; of several concurrent calls only one does.
  virtual Result<bool> set_queue_paused(Id context, const std::string& queue, bool paused) = 0;
  // Cancels at most max jobs of the queue, in queue order. Returns the number of removed entries.
  virtual Result<std::uint32_t> purge_queue(Id context, const std::string& queue, std::uint32_t max) = 0;
  virtual Result<std::vector<std::string>> queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                         std::uint32_t max) = 0;  // index 0 is claimed next
  virtual Result<std::uint64_t> queue_length(Id context, const std::string& queue) = 0;
  // Reports at most 10,000 queues (an arbitrary subset) and the types of 1,000 runners. The cost grows with their
  // number.
  virtual Result<KnownQueues> known_queues(Id context) = 0;
  // Counts the entries of these queues, at most kMaxSurveyedQueues, and of all other indexes.
  static constexpr std::size_t kMaxSurveyedQueues = 250;
  virtual Result<Survey> survey(Id context, std::span<const std::string> queues) = 0;
  virtual Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) = 0;
  // Removes a dead letter. With requeue, its job runs again; if there is no record or never was, its entry is pushed
  // onto its queue again. Errors of requeue(); not_found.
  virtual Result<void> resolve_dead_letter(Id context, const std::string& id, bool requeue) = 0;
};

// Registration of runners.
class RunnerStore {
 public:
  virtual ~RunnerStore() = default;

  // Returns all runners, sorted by id. A record that another client wrote is included after at most ten minutes, since
  // all keys are scanned once in ten minutes.
  virtual Result<std::vector<RunnerInfo>> runners(Id context) = 0;
  // Returns only runners that an agent holds or has held. Agents poll this call, so its cost does not depend on the
  // number of keys: a server may hold a million queued jobs.
  virtual Result<std::vector<RunnerInfo>> held_runners(Id context) = 0;
  // Holds runner:<id> for ttl_ms and writes its record; topic and local are written only if they are missing. Error
  // conflict: an instance other than `replaces` holds it (`held_by`), or the record has another public key (`held_by`
  // is empty).
  virtual Result<void> hold_runner(Id context, const Runner&, const RunnerHolder& self, std::uint32_t ttl_ms,
                                   const std::string& replaces, RunnerHolder& held_by) = 0;
  virtual Result<void> release_runner(Id context, Id runner, const RunnerHolder& self) = 0;
};

// Facts, index entries and anomalies, which explain, verify and rebuild read.
class JournalStore {
 public:
  virtual ~JournalStore() = default;

  // Returns at most max facts after a revision, in order.
  virtual Result<std::vector<Fact>> journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                            std::uint32_t max) = 0;
  // Returns the facts at these revisions, in this order, without missing facts. Needs few round trips for any number.
  virtual Result<std::vector<Fact>> journal_at(Id context, const std::string& queue,
                                               std::span<const std::uint64_t> revisions) = 0;
  // Returns one result for each job, in order. with_positions: a full inspection, which is slow if a queue is long.
  virtual Result<std::vector<JobStoreState>> job_states(Id context, std::span<const std::string> job_keys,
                                                        bool with_positions) = 0;
  // Applies all fixes in one step. Returns false and changes nothing if the job has changed since the inspection.
  virtual Result<bool> repair(Id context, const std::string& job_key, const Repair&) = 0;
  // Returns one result for each message, in order.
  virtual Result<std::vector<MessageStoreState>> message_states(Id context,
                                                                std::span<const std::string> message_keys) = 0;
  // Adds entries of these kinds to mj:outbox ("inbox": to mj:inbox). Returns false and changes nothing if the message
  // has changed since the inspection.
  virtual Result<bool> repair_message(Id context, const std::string& message_key, const std::string& inspection_digest,
                                      const std::vector<std::string>& kinds) = 0;
  // Counts index entries without reading jobs, so that the cost does not depend on their number. slots: at most 360.
  virtual Result<Tally> tally(Id context, std::uint64_t slot_ms, std::uint32_t slots) = 0;
  virtual Result<std::vector<std::string>> anomalies(Id context, std::size_t max) = 0;  // one line each, newest last
  // Records a request that was denied; the newest 1000 are kept.
  virtual Result<void> record_refusal(Id context, const RefusalNote&) = 0;
  virtual Result<std::vector<RefusalNote>> refusals(Id context, std::size_t max) = 0;  // newest first
};

// Access to records and logs, and lists of jobs by their last change.
class RecordStore {
 public:
  virtual ~RecordStore() = default;

  // Loads a hash. Errors: not_found; invalid: the key has another type.
  virtual Result<Fields> load(Id context, const std::string& key) = 0;
  // Loads these fields of a hash. Missing fields are omitted.
  virtual Result<Fields> load_fields(Id context, const std::string& key, std::span<const std::string_view> names) = 0;
  // load_fields() for many keys, in their order. An entry is empty if the key is missing, is not a hash, or has none of
  // these fields. A value of more than 1 MiB is treated as missing.
  virtual Result<std::vector<Fields>> load_batch(Id context, std::span<const std::string> keys,
                                                 std::span<const std::string_view> names) = 0;
  virtual Result<EndedJob> ended_job(Id context, const std::string& job_key) = 0;    // errors as load()
  virtual Result<void> save(Id context, const std::string& key, const Fields&) = 0;  // sets these fields of a hash
  // Finds the actor with a public key. Records that other clients wrote are found within a minute, and sooner if no
  // actor of the index has the key.
  virtual Result<KeyOwner> owner_of_key(const std::string& pubkey) = 0;
  // Returns at most max keys with this prefix, unordered, without duplicates.
  virtual Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) = 0;
  // Returns a page of a job list. The cost is bounded by max_scanned, regardless of the number of jobs.
  virtual Result<JobsPage> jobs(Id context, const JobFilter&) = 0;
  // Returns lines after after_seq; waits up to wait_ms for the first line.
  virtual Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                               std::uint32_t wait_ms) = 0;
};

// Topics, and messages between contexts (diagram in docs/tenants.md).
class MessageStore {
 public:
  virtual ~MessageStore() = default;

  // Returns the message keys that are stored for a topic, oldest first.
  virtual Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) = 0;
  // Returns messages that clients have put on msg_out, oldest first. Each stays on msg_out_coordinator until it is
  // routed or rejected.
  virtual Result<std::vector<std::string>> msg_out_keys(Id context) = 0;
  // Pushes the message key onto msg_out, as clients do.
  virtual Result<void> push_to_msg_out(Id context, const std::string& message_key) = 0;
  // Stores the message if fields are given, pushes its key onto the topic's list and publishes the hint.
  virtual Result<void> send_to_topic(Id context, const std::string& topic, const std::string& message_key,
                                     const Fields& message) = 0;
  // Converts a message's jobs into records and queue entries, marks the message acknowledged and removes it from its
  // list. This is one atomic step, once per message. The message becomes processed (or error) at the end of its last
  // job.
  virtual Result<AcceptedMessage> accept_message(Id context, const AcceptMessage&) = 0;
  // Closes a message that creates no jobs and removes it from its list. With a reason, the message is invalid and gets
  // the status error. With an empty reason, it is text for people and is processed.
  virtual Result<void> close_message(Id context, const std::string& list, const std::string& message_key,
                                     const std::string& reason) = 0;

  // Starts sending a message, in one atomic step, once per message. Its jobs stay `planned` here until the answer
  // arrives.
  virtual Result<AcceptedMessage> route_message(Id context, const RouteMessage&) = 0;
  // Stores a valid message that was received from another context. `fields` is its record, or empty if the record
  // exists.
  virtual Result<Arrival> receive_message(Id context, const std::string& message_key, const MessageState&,
                                          const Fields& fields) = 0;
  // Returns messages that are to be sent or accepted now, at most max of each kind. Each message is returned to one
  // caller, and again after redelivery_delay_ms. clock_went_back: the clock of the store was set back, so that messages
  // with a later time are due, too.
  virtual Result<DueMessages> due_messages(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms,
                                           bool clock_went_back) = 0;
  virtual Result<void> complete_delivery(Id context, const OutboxEntry&, const MailResult&) = 0;
  // Ends the jobs of a sent message, and the message, as the answer specifies. Returns false if no such message was
  // sent.
  virtual Result<bool> answer_message(Id context, const AnswerMessage&) = 0;
  // Cancels all jobs of a message permanently: for a sent message here and at the receiver, for an unaccepted message
  // at once. Ended jobs are not changed. Error not_found.
  virtual Result<void> cancel_message(Id context, const std::string& message_key) = 0;
  // Appends log lines to a job of a sent message. Returns the last stored line number; 0 if no such message was sent.
  virtual Result<std::uint64_t> append_remote_log(Id context, const std::string& message_key,
                                                  const std::string& content_hash, const std::string& job_key,
                                                  const std::vector<Log>&) = 0;
  // Reserves at most 1000 consecutive job ids of a caller and returns the first.
  virtual Result<Id> reserve_jobs(Id context, Id caller, std::uint32_t count) = 0;
  // Deletes at most max messages that ended more than retention_ms ago. Returns their number.
  virtual Result<std::uint32_t> retire_messages(Id context, std::uint64_t retention_ms, std::uint32_t max) = 0;
};

class Store : public ClaimStore,
              public LeaseStore,
              public PrerequisiteStore,
              public NoticeStore,
              public SubmitStore,
              public QueueStore,
              public RunnerStore,
              public JournalStore,
              public RecordStore,
              public MessageStore {
 public:
  // Returns the properties of the server of this context. Context 0 stands for the server of all contexts without a
  // server of their own.
  virtual Result<StoreServerInfo> server_info(Id context) = 0;
  Result<StoreServerInfo> server_info() { return server_info(0); }
  virtual Result<std::uint64_t> now_ms() = 0;  // the store's clock
};

// Result of Waiter::wait().
struct WaitResult {
  bool has_work = false;                // at least one of the queues may have an entry, so the caller should claim
  std::vector<std::string> hints;       // payloads published on the topic: message keys, "cancel:<job key>"
  bool reconnected = false;             // hints may have been lost, so the caller should read topic_pending()
  bool has_unreachable_server = false;  // the connection to a server has failed and was not restored
};

// Waits for work. wait() does not remove entries from queues, so that no job can be lost between wait() and claim().
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns when a queue has an entry (only if for_work), a hint arrives or wake() was called, or after timeout_ms.
  virtual Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) = 0;
  // Sets the paused queues of the context. From the next wait() on, entries of these queues do not end a wait.
  virtual void set_paused(Id context, const std::vector<std::string>& queues) = 0;
  // Ends the present or the next wait(). May be called from any thread, also from a signal thread.
  virtual void wake() = 0;
};

class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual Result<std::unique_ptr<Store>> open() = 0;
  // Opens a store for interactive read-only clients: calls to a server that does not answer fail sooner.
  virtual Result<std::unique_ptr<Store>> open_reader() { return open(); }
  // An empty queue name means that only the topic on the server of that context is waited for.
  virtual Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                      const std::string& topic) = 0;
  virtual Result<std::unique_ptr<ObjectStore>> open_objects() = 0;
  virtual Result<std::unique_ptr<FlowStore>> open_flows() = 0;
  virtual Result<std::unique_ptr<WorkflowStore>> open_workflows() = 0;
};

}  // namespace mycojobs
