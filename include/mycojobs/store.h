// Port: where records, queues, claims and logs live: Redis (agent/store/redis_store.h), or the imitation of it in this
// process (tests/support/redis/memory_server.h); one contract suite (tests/contract). Protocol: docs/protocol.md.
//
// Threads: a Store and a Waiter belong to one thread each (only Waiter::wake() may be called from any thread);
// a StoreFactory may be used from any.
// Errors: unavailable (the server is away; the call may or may not have happened, and every call here may be repeated),
// stale_claim, conflict, not_found, invalid, denied (password; rights of a claim), unsupported (server too old;
// `databases` too small). Time: every moment that is compared is the store's own; moments of this host never enter.
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

#include "mycojobs/flows.h"
#include "mycojobs/job_end.h"
#include "mycojobs/objects.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store_views.h"
#include "mycojobs/workflows.h"

namespace mycojobs {

// The right to report on a job. token is known to its owner alone: the store keeps a hash.
struct ClaimRef {
  Id context = 0;
  std::string job_key;
  std::string claim_id;
  std::string token;             // 64 hex characters
  std::string script_type = {};  // of the job, for those who count
  // For those who tell spans of it: of the job; which attempt this is; when the claim was answered, by our clock.
  std::string traceparent = {};
  std::uint32_t attempt = 0;
  std::uint64_t claimed_us = 0;  // since 1970
};

struct ClaimRequest {
  Id context = 0;
  Id runner = 0;
  // Who claims. A context whose record names executors gives its jobs to these and its admins; to nobody else: denied.
  // 0: an agent that is nobody; nothing: the operator's own (router, `dev`), which is not asked.
  std::optional<Id> actor = std::nullopt;
  std::string instance;                         // of the runner: RunnerHold::instance
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
  std::vector<std::string> paused;  // of the request's queues: nothing is taken from them, nobody should wait on them
  bool more = false;  // the bound of one call was met before the queues were empty: entries that cannot run were many
};

enum class Renewal { renewed, stale, cancel };  // cancel: renewed, and somebody asked to cancel the job

struct LogAppend {
  ClaimRef claim;
  std::vector<Log> lines;  // seq rising; a line whose seq is stored already is passed over
};
struct EndReport {
  ClaimRef claim;
  JobEnd end;
  // Of a failure: not the job's end but this attempt's; the next one begins after this pause. Passed over if somebody
  // wants the job cancelled.
  std::optional<std::uint64_t> retry_after_ms = std::nullopt;
};
struct Mark {  // finer state of a run that goes on: detail running, unkillable
  ClaimRef claim;
  std::string detail;
};
struct Release {  // the run says nothing about the job (lost launcher): back to its queue, to be claimed next
  ClaimRef claim;
  std::string reason;
  bool ran = true;  // false: nothing of the job was started, so it is not counted as a delivery
};
using Report = std::variant<LogAppend, EndReport, Release, Mark>;

struct Lease {
  std::string job_key;
  std::uint64_t until_ms = 0;
  std::uint64_t lease_ms = 0;  // its length, as its owner chose it
};

// Work that time brings, done by whoever comes first: see Store::tick().
struct TickRequest {
  std::uint32_t missing_wait_ms = 2000;              // how long an entry may wait for its record
  std::uint64_t retention_ms = 24ULL * 3600 * 1000;  // of jobs that have ended; 0: for ever
  std::uint64_t retention_count = 0;                 // keep at most so many that have ended; 0: any number
  std::uint32_t max = 100;                           // of each kind, so that no other client waits for long
};
struct TickReply {
  std::uint32_t due = 0;          // delayed jobs and retries whose time has come: queued now
  std::uint32_t settled = 0;      // dependents of ended jobs that were too many for one step
  std::uint32_t missing = 0;      // entries whose record has appeared (queued) or never did (dead letters)
  std::uint32_t overdue = 0;      // jobs that waited longer than their queue_timeout_ms: ended
  std::uint32_t retired = 0;      // ended jobs past retention: gone with their record, log and facts
  bool more = false;              // `max` was met: call again soon
  std::uint64_t next_due_ms = 0;  // how long until the next delayed job is due; 0: none is waiting
};

// A job that waits for something outside. Conditions: the job's `prerequisites`.
struct AwaitedPrerequisites {
  std::string job_key;
  std::vector<std::string> conditions;
  std::uint64_t waited_ms = 0;  // since it was first met, by the store's clock
  bool left = false;            // a coordinator has looked here before: it may be allowed what the caller is not
};

// Who looks after prerequisites: coordinators; agents where no coordinator has looked for 5 s.
enum class Looker { agent, coordinator };

// Somebody is to hear that a job or a flow has ended; it stands in the store from the same step as the end.
struct Notice {
  std::string entry;  // as the store has it
  std::string of;     // job:12:2001, flow:33
  bool finished = false;
  std::uint64_t ended_us = 0;  // by the store's clock; with `of` it names the notice
  std::uint32_t tries = 0;
  std::vector<std::string> reached;  // digests of the targets that have it
};
struct DueNotices {
  std::vector<Notice> notices;
  std::uint64_t next_ms = 0;  // how long until the next one is due; 0: none
};
// What becomes of a notice after a try. Nothing: all have heard of it, or it is given up, which `given_up` tells.
struct NoticeAfter {
  struct Again {
    std::vector<std::string> reached;
    std::uint64_t after_ms = 0;
    bool counts = true;  // as a try
  };
  std::optional<Again> again;
  std::string given_up;  // a line for the anomalies; empty: it is not
};

struct LogPage {
  std::vector<Log> lines;
  std::vector<std::uint64_t> passed;  // numbers before the last line that no line has: ends of earlier runs
  bool ended = false;                 // no line will follow
};

// A job of a message: its queue, where it is or will be.
struct MessageJob {
  Job job;
  std::string queue;  // "queue:python", "mj:queue:runner20"
};
struct TakeMessage {
  std::string list;  // where its key stands: of a topic, or msg_in
  std::string message_key;
  std::vector<MessageJob> jobs;
  Id flow = 0;                            // that it has become
  std::vector<std::string> origins = {};  // keys of the jobs where it comes from, in their order
};
struct MessageIntake {
  std::vector<std::string> job_keys;
  bool repeated = false;  // this message was taken, or sent, before: nothing was changed
};
// A message that leaves for another context, or has come from one.
struct MessageMark {
  std::string content;  // content_hash() (domain/signatures.h): another message with its key is another one
  Fields more;          // what is to be remembered of it: names in store/keys.cpp
};
struct RouteMessage {
  std::string message_key;
  MessageMark mark;
  std::uint64_t deliver_ms = 0,
                result_ms = 0;  // from now until it must be delivered; from then until its answer: 0: any
  std::vector<MessageJob> jobs;
};
// known: it came before; other: the same sender has sent other content with that id; taken: another's message has it;
// full: too many wait; sender_full: too many of that sender, or too large ones.
enum class Arrival { stored, known, other, taken, full, sender_full };
struct OutboxEntry {
  std::string entry;  // "send message:12:101"
  std::string kind, message_key;
  Fields mark;
};
struct DueMail {
  std::vector<OutboxEntry> out;
  std::vector<std::string> arrived;  // message keys
  std::uint64_t next_ms = 0;         // until there is more; 0: nothing waits
  std::uint64_t now_ms = 0;          // Redis' clock
};
struct MailAfter {
  enum class What { delivered, later, failed, over };
  What what = What::over;
  std::uint64_t pause_ms = 0;  // of later
  std::string detail, why;     // of failed: of the jobs' ends; of later: empty if it was no try
  Fields more = {};            // for the mark
};
struct AnsweredJob {
  std::string job_key;
  Fields more;  // of its record, beside its end
  JobEnd end;
};
struct AnswerMessage {
  std::string message_key, content;
  std::string reason;  // empty: it was processed
  Fields fields;       // of the message
  std::vector<AnsweredJob> jobs;
  bool is_last = true;  // false: more of its jobs follow
  std::string carried;  // of a message that carries a router's job: what the answer says of it; in the mark
};

// What became of jobs that came in together.
struct NewJobs {
  struct Refused {
    std::size_t index = 0;  // of the job
    Error error;
  };
  std::vector<Job> jobs;           // as they are now
  std::vector<bool> existed;       // of each: it was there before
  std::optional<Refused> refused;  // nothing was written, and `jobs` is empty
};

struct NewRecord {
  std::string prefix;   // "actor:", "message:12:"
  std::string counter;  // which ids are counted: "actor", "message:12"
  Id id = 0;            // 0: the next free one
  Fields fields;        // without id, created_at, updated_at
};
struct CreatedRecord {
  std::string key;
  Fields record;
  bool existed = false;
};

struct ServerFacts {
  std::string product, version, run_id;  // "redis" "7.0.15"
  std::uint32_t databases = 0;
  std::vector<Id> used;                                   // databases that hold keys, but for 0: contexts
  std::string appendonly, appendfsync, maxmemory_policy;  // empty: the server does not let us read it
  bool persistence_error = false, cluster = false, replica = false;
};

// From a queue to the stored end of a run.
class ClaimStore {
 public:
  virtual ~ClaimStore() = default;

  // Takes jobs off queues, marks them started and returns them: one atomic step for the whole call.
  virtual Result<ClaimReply> claim(const ClaimRequest&) = 0;
  // All of one context. One answer each, in order. A lease that has expired is stale: it cannot be revived.
  virtual Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) = 0;
  // In order, in one trip. The outer error means that any of them may have happened: repeat all. An end that is
  // repeated alike is answered alike; another end for an ended job is `conflict`; a claim that is not live is
  // `stale_claim`.
  virtual Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) = 0;
  // report() in two halves, for who may not wait. begin_report() sends them and answers the descriptor that can be read
  // once the answer is there; nothing: that would take waiting, or has failed: report() them. finish_report() waits for
  // the answers: with the same reports, at the same place, before any other call.
  virtual std::optional<int> begin_report(Id, std::span<const Report>) { return std::nullopt; }
  virtual Result<std::vector<Result<void>>> finish_report(Id context, std::span<const Report> reports) {
    return report(context, reports);
  }
};

// What nobody looks after any more, and what time brings.
class LeaseStore {
 public:
  virtual ~LeaseStore() = default;

  // Live claims and when their leases end.
  virtual Result<std::vector<Lease>> leases(Id context) = 0;
  // Makes the job claimable again if its lease still ends at until_ms and that moment has passed, or is further off
  // than a lease is long (the server's clock went back). The caller has seen it unrenewed for a whole lease. false: it
  // does not.
  virtual Result<bool> expire(Id context, const Lease&) = 0;
  // The same at once for every live claim of an instance of a runner. The caller knows that no process of it is left.
  virtual Result<std::vector<std::string>> expire_instance(Id context, Id runner, const std::string& instance) = 0;
  virtual Result<TickReply> tick(Id context, const TickRequest&) = 0;
};

// Jobs that wait for something outside.
class PrerequisiteStore {
 public:
  virtual ~PrerequisiteStore() = default;

  // Jobs whose prerequisites should be looked at now, at most max. Each is given to one caller, and again after
  // again_ms.
  virtual Result<std::vector<AwaitedPrerequisites>> prerequisites_due(Id context, std::uint32_t max,
                                                                      std::uint32_t again_ms, Looker) = 0;
  // They are met: to its queue. With a reason: they never will be; the job ends as error, detail prerequisite.
  virtual Result<void> prerequisites_settled(Id context, const std::string& job_key, const std::string& impossible) = 0;
};

// Who is to hear of ends.
class NoticeStore {
 public:
  virtual ~NoticeStore() = default;

  // Notices whose time has come, at most max. Each is given to one caller, and again after hold_ms unless it was
  // settled.
  virtual Result<DueNotices> notices_due(Id context, std::uint32_t max, std::uint32_t hold_ms) = 0;
  virtual Result<void> settle_notice(Id context, const Notice&, const NoticeAfter&) = 0;
};

// New records, and what people ask of jobs.
class SubmitStore {
 public:
  virtual ~SubmitStore() = default;

  // Writes the record and pushes its key onto its queue (or keeps it until its run_at_ms). id 0: the next free one of
  // that caller. An id that exists with the same content (see same_content()) is returned as it is; with other content:
  // conflict. An idempotency_key that this caller has used names its first job in the same way.
  virtual Result<Job> submit(const Job&) = 0;
  // Writes the record alone, in no queue: start_job() queues it, or a flow adopts it. Ids and conflicts as in submit().
  virtual Result<Job> create_job(const Job&) = 0;
  // The same of many: submit() if `queued`, else create_job(). Takes as many of the first ones as fit into one step of
  // the server, at least one, and writes all of these or none. Who has more calls again with the rest.
  virtual Result<NewJobs> submit_some(std::span<const Job>, bool queued) = 0;
  // Queues a job whose record stands in no queue. One that is in a queue or a flow, runs, or has run is left alone.
  // Error not_found.
  virtual Result<Job> start_job(Id context, const std::string& job_key) = 0;
  // Any other record, if there is none with that id; whoever finds one there compares.
  virtual Result<CreatedRecord> create_record(Id context, const NewRecord&) = 0;
  // Sets these fields of a record that is there; an empty text takes a field away. The record afterwards. Errors:
  // not_found; conflict: another actor has this `pubkey`, as in create_record().
  virtual Result<Fields> change_record(Id context, const std::string& key, const Fields&) = 0;
  // An actor, a context, a runner, a message or a job leaves, with what the store keeps of it. Errors: not_found;
  // conflict: it lives (somebody holds it, runs it or waits for it), and how.
  virtual Result<void> delete_record(Id context, const std::string& key) = 0;
  // What was asked stays: a job that nobody runs ends as cancelled here, a claimed one by its owner (Renewal::cancel),
  // an ended one is left alone. Error not_found.
  virtual Result<void> cancel(Id context, const std::string& job_key) = 0;
  // By an operator: a job that ended as error runs again, as its next attempt, its dead letter struck off. Error
  // conflict: it has not ended, has finished, or was cancelled (that is for ever); not_found.
  virtual Result<void> requeue(Id context, const std::string& job_key) = 0;
};

// Queues and dead letters.
class QueueStore {
 public:
  virtual ~QueueStore() = default;

  virtual Result<std::vector<QueueInfo>> queues(Id context) = 0;  // with entries, facts or a pause; by name
  virtual Result<void> pause_queue(Id context, const std::string& queue, bool paused) = 0;
  // Cancels at most max of the jobs that stand in the queue, the next ones first. Returns how many entries went.
  virtual Result<std::uint32_t> purge_queue(Id context, const std::string& queue, std::uint32_t max) = 0;
  virtual Result<std::vector<std::string>> queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                         std::uint32_t max) = 0;  // the next to be taken is 0
  virtual Result<std::uint64_t> queue_length(Id context, const std::string& queue) = 0;
  // Takes as long as there are queues and runners, of which it tells at most 10,000 (any of them) and 1,000.
  virtual Result<KnownQueues> known_queues(Id context) = 0;
  // Lengths of these queues, of which at most kMostSurveyed are looked at, and of all other places.
  static constexpr std::size_t kMostSurveyed = 250;
  virtual Result<Survey> survey(Id context, std::span<const std::string> queues) = 0;
  virtual Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) = 0;
  // Strikes a dead letter off the list. With requeue: its job runs again, or its entry is pushed onto its queue again
  // if there is no record or was none. Errors of requeue(); not_found.
  virtual Result<void> settle_dead_letter(Id context, const std::string& id, bool requeue) = 0;
};

// Who holds which runner.
class RunnerStore {
 public:
  virtual ~RunnerStore() = default;

  // By id. Those whose record another client wrote are listed within ten minutes: only so often are all keys looked at.
  virtual Result<std::vector<RunnerInfo>> runners(Id context) = 0;
  // Those alone that an agent holds or has held, which costs the same however many keys there are: what agents ask,
  // again and again, of a server that may hold a million queued jobs.
  virtual Result<std::vector<RunnerInfo>> held_runners(Id context) = 0;
  // Holds runner:<id> for ttl_ms and writes its record, topic and local only where it has none. Error conflict: another
  // instance than `replaces` holds it (`held_by`), or the record has another public key (`held_by` is empty).
  virtual Result<void> hold_runner(Id context, const Runner&, const RunnerHold& self, std::uint32_t ttl_ms,
                                   const std::string& replaces, RunnerHold& held_by) = 0;
  virtual Result<void> release_runner(Id context, Id runner, const RunnerHold& self) = 0;
};

// Facts, places and anomalies: what explain, verify and rebuild read.
class JournalStore {
 public:
  virtual ~JournalStore() = default;

  // Facts after a revision, in order.
  virtual Result<std::vector<Fact>> journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                            std::uint32_t max) = 0;
  // The facts at these revisions, in this order, without those that are not there. Few trips, however many they are.
  virtual Result<std::vector<Fact>> journal_at(Id context, const std::string& queue,
                                               std::span<const std::uint64_t> revisions) = 0;
  // One answer each, in order. positions: a whole look, which takes time where a queue is long.
  virtual Result<std::vector<JobPlaces>> places(Id context, std::span<const std::string> job_keys, bool positions) = 0;
  // All of it in one step, or nothing if the job has moved since the look: false.
  virtual Result<bool> repair(Id context, const std::string& job_key, const Repair&) = 0;
  // Of messages: one answer each, in order.
  virtual Result<std::vector<MessagePlaces>> message_places(Id context, std::span<const std::string> message_keys) = 0;
  // These of it go into mj:outbox ("inbox": into mj:inbox), or nothing if it has moved since the look: false.
  virtual Result<bool> repair_message(Id context, const std::string& message_key, const std::string& seen,
                                      const std::vector<std::string>& kinds) = 0;
  // What stands in the indexes, without looking at jobs: its time does not grow with them. slots: at most 360.
  virtual Result<Tally> tally(Id context, std::uint64_t slot_ms, std::uint32_t slots) = 0;
  virtual Result<std::vector<std::string>> anomalies(Id context, std::size_t max) = 0;  // one line each, newest last
  // Who asked in vain for what; the newest 1000 are kept.
  virtual Result<void> note_refusal(Id context, const RefusalNote&) = 0;
  virtual Result<std::vector<RefusalNote>> refusals(Id context, std::size_t max) = 0;  // newest first
};

// Records as they are, logs, jobs by what happened last.
class RecordStore {
 public:
  virtual ~RecordStore() = default;

  virtual Result<Fields> load(Id context, const std::string& key) = 0;  // a hash; not_found; invalid: another type
  // Only these fields of it; those that are absent are left out.
  virtual Result<Fields> load_fields(Id context, const std::string& key, std::span<const std::string_view> names) = 0;
  // The same of many, in the order of their keys. Empty: there is none, it is no hash, or has none of these fields. A
  // value of more than 1 MiB counts as absent.
  virtual Result<std::vector<Fields>> load_some(Id context, std::span<const std::string> keys,
                                                std::span<const std::string_view> names) = 0;
  virtual Result<EndedJob> ended_job(Id context, const std::string& job_key) = 0;    // errors as load()
  virtual Result<void> save(Id context, const std::string& key, const Fields&) = 0;  // sets these fields of a hash
  // Records that plain clients wrote are seen within a minute, and sooner where nobody has the key.
  virtual Result<KeyOwner> owner_of_key(const std::string& pubkey) = 0;
  // Keys that begin with prefix, in no order, each once, at most max.
  virtual Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) = 0;
  // Takes as long as max_looks says, however many jobs there are.
  virtual Result<JobsPage> jobs(Id context, const JobsWanted&) = 0;
  // Lines after after_seq; waits up to wait_ms for the first one.
  virtual Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                               std::uint32_t wait_ms) = 0;
};

// Topics, and messages between contexts: docs/tenants.md draws their way.
class MessageStore {
 public:
  virtual ~MessageStore() = default;

  // Durable half of a topic: message keys waiting there, oldest first.
  virtual Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) = 0;
  // What clients have put on msg_out, oldest first: it stands on msg_out_coordinator until it is routed or refused.
  virtual Result<std::vector<std::string>> outgoing(Id context) = 0;
  // Onto msg_out, as clients do.
  virtual Result<void> put_out(Id context, const std::string& message_key) = 0;
  // Stores the message if fields are given, puts its key on the topic's list and publishes the hint.
  virtual Result<void> topic_send(Id context, const std::string& topic, const std::string& message_key,
                                  const Fields& message) = 0;
  // Turns a message's jobs into records and queue entries, marks the message acknowledged and takes it off its list:
  // one atomic step, once per message. The message becomes processed (or error) with the end of its last job.
  virtual Result<MessageIntake> take_message(Id context, const TakeMessage&) = 0;
  // The message cannot be used: status error with this reason, off the list. An empty reason: it is to be read by
  // people, and has arrived.
  virtual Result<void> close_message(Id context, const std::string& list, const std::string& message_key,
                                     const std::string& reason) = 0;

  // A message that is to leave: its jobs are `planned` here until its answer, in one step, once.
  virtual Result<MessageIntake> route_message(Id context, const RouteMessage&) = 0;
  // One that has come from elsewhere, and holds. fields: its record; none: its record is there.
  virtual Result<Arrival> arrive_message(Id context, const std::string& message_key, const MessageMark&,
                                         const Fields& fields) = 0;
  // What is to be sent and taken now, at most max of each; each is given to one caller, and again after hold_ms.
  virtual Result<DueMail> mail_due(Id context, std::uint32_t max, std::uint32_t hold_ms, bool clock_went_back) = 0;
  virtual Result<void> settle_mail(Id context, const OutboxEntry&, const MailAfter&) = 0;
  // Its jobs end with what the answer says, and it with them. false: no such message has left from here.
  virtual Result<bool> answer_message(Id context, const AnswerMessage&) = 0;
  // All that it carries ends, for ever: of one that is away here and there; one that nobody has taken yet ends at once,
  // and what has ended stays. Error not_found.
  virtual Result<void> cancel_message(Id context, const std::string& message_key) = 0;
  // Lines of a job of a message that is away. The last number that is stored; 0: it is none such.
  virtual Result<std::uint64_t> follow_log(Id context, const std::string& message_key, const std::string& content,
                                           const std::string& job_key, const std::vector<Log>&) = 0;
  // The first of so many job ids of a caller, at most 1000, that nobody else gets.
  virtual Result<Id> reserve_jobs(Id context, Id caller, std::uint32_t count) = 0;
  // Messages that ended so long ago leave. How many did; at most max.
  virtual Result<std::uint32_t> retire_messages(Id context, std::uint64_t keep_ms, std::uint32_t max) = 0;
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
  // Of the server that this context is on; 0: of the one with those that have none of their own.
  virtual Result<ServerFacts> facts(Id context) = 0;
  Result<ServerFacts> facts() { return facts(0); }
  virtual Result<std::uint64_t> now_ms() = 0;  // the store's clock
};

struct Woken {
  bool work = false;               // at least one of the queues has an entry, or may have: claim
  std::vector<std::string> hints;  // payloads published on the topic: message keys, "cancel:<job key>"
  bool reconnected = false;        // hints may have been missed: look at topic_pending
  bool away = false;               // a server has failed before and has not been tried again
};

// Waits for work without being able to lose or strand any.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns when a queue has an entry (only if for_work), a hint came, wake() was called, or after timeout_ms.
  virtual Result<Woken> wait(std::uint32_t timeout_ms, bool for_work) = 0;
  // From the next wait() on these queues of the context are not waited on; all others are.
  virtual void set_paused(Id context, const std::vector<std::string>& queues) = 0;
  virtual void wake() = 0;  // any thread, also from a signal's thread; remembered until the next wait()
};

class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual Result<std::unique_ptr<Store>> open() = 0;
  // For who only reads, and whom somebody watches: it gives up sooner where the server is silent.
  virtual Result<std::unique_ptr<Store>> open_reader() { return open(); }
  // An empty queue: none, only the topic on that context's server.
  virtual Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                      const std::string& topic) = 0;
  virtual Result<std::unique_ptr<ObjectStore>> open_objects() = 0;
  virtual Result<std::unique_ptr<FlowStore>> open_flows() = 0;
  virtual Result<std::unique_ptr<WorkflowStore>> open_workflows() = 0;
};

}  // namespace mycojobs
