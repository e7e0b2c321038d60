// The Store on Redis 7 or newer, or on the imitation of Redis in this process (tests/support/redis/memory_server.h).
// The protocol of jobs is implemented by scripts/*.lua, in which each call is one atomic step; store/keys.toml
// describes the keys. Contracts, errors and thread-safety: store/store.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "store/record_changes.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_link.h"
#include "store/redis/store_metrics.h"
#include "store/store.h"

namespace mycojobs {

// The latest journal revisions that the stores of one process have seen. They reveal a server that was restarted
// without its latest data. Thread-safe.
class JournalHeads {
 public:
  void observe_head(Id context, const std::string& queue, std::uint64_t head);
  // Compares the revisions with those that the journals of a context had when its server was started. Returns a text
  // for users that names the journals with lost facts, or an empty text. A loss is reported once for each start.
  std::string find_lost_queues(Id context, const std::string& server_run_id, const Fields& heads_at_start);

 private:
  struct ObservedHeads {
    std::string server_run_id;
    std::map<std::string, std::uint64_t> heads;  // by queue
  };
  std::mutex mutex_;
  std::map<Id, ObservedHeads> observed_by_context_;
};

struct RedisStoreConfig {
  std::string default_url = "redis://127.0.0.1:6379";
  // URLs of contexts that have their own server. Such a URL may name a database (/3, ?db=3); otherwise the id of a
  // context is its database number.
  std::map<Id, std::string> context_urls;
  std::string client_name = "mycojobs";  // as shown by CLIENT LIST; must not contain blanks
  std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
  std::uint32_t reader_timeout_ms = 3000;  // limit of both time-outs for StoreFactory::open_reader()
  std::shared_ptr<JournalHeads> journal_heads =
      std::make_shared<JournalHeads>();  // shared by all stores of this configuration
  StoreInstrumentation instrumentation;
  // True for the server of a state folder, which commands start and stop: a restart is then normal and is logged at the
  // level `info`.
  bool is_intermittent = false;
  // Number of replicas that must have received a submission or an end before the call succeeds.
  std::uint32_t wait_replicas = 0;
};

// Returns the server and database of a context. Context 0 stands for database 0 of the default server. Error: invalid
// (a URL).
Result<RedisConnection::Options> connection_options(const RedisStoreConfig&, Id context);

OpenLink link_opener(const RedisStoreConfig&);

// Answer to a job without a flow that waits for the prerequisite approval:NAME.
struct PrerequisiteAnswer {
  std::string name;  // name of the approval: 1 to 64 letters, digits, '.', '_' and '-'
  bool approved = true;
  Id actor = 0;
  std::string comment;  // is written to the job's log (approved) or error (rejected)
};

class RedisStore final : public Store, private ContextLinks {
 public:
  explicit RedisStore(const RedisStoreConfig&);
  explicit RedisStore(OpenLink open, StoreInstrumentation instrumentation = {})
      : ContextLinks(std::move(open), std::move(instrumentation)) {}

  Result<ClaimReply> claim(const ClaimRequest&) override;
  Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef>, std::uint32_t lease_ms) override;
  Result<std::vector<Result<void>>> report(Id context, std::span<const Report>) override;
  std::optional<int> begin_report(Id context, std::span<const Report>) override;
  Result<std::vector<Result<void>>> finish_report(Id context, std::span<const Report>) override;
  Result<std::vector<Lease>> leases(Id context) override;
  Result<bool> expire(Id context, const Lease&) override;
  Result<std::vector<std::string>> expire_instance(Id context, Id runner, const std::string& instance) override;
  Result<TickReply> tick(Id context, const TickRequest&) override;
  Result<std::vector<AwaitedPrerequisites>> due_prerequisites(Id context, std::uint32_t max,
                                                              std::uint32_t redelivery_delay_ms, CheckerRole) override;
  Result<void> complete_prerequisites(Id context, const std::string& job_key,
                                      const std::string& failure_reason) override;
  Result<DueNotices> due_notices(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms) override;
  Result<void> complete_notice(Id context, const Notice&, const NoticeResult&) override;
  Result<bool> answer_prerequisite(Id context, const std::string& job_key, const PrerequisiteAnswer&);

  Result<NewJobs> submit_batch(std::span<const Job>, bool queued) override;
  Result<Job> submit(const Job&) override;
  Result<Job> create_job(const Job&) override;
  Result<Job> start_job(Id context, const std::string& job_key) override;
  Result<CreatedRecord> create_record(Id context, const NewRecord&) override;
  Result<Fields> change_record(Id context, const std::string& key, const Fields&) override;
  Result<void> delete_record(Id context, const std::string& key) override;
  // Contracts of the next five functions: store/record_changes.h.
  Result<Fields> change_record_if(Id context, const std::string& key, const Fields&, const Fields& expected);
  Result<std::string> context_revision(Id context);
  Result<bool> delete_context_if(Id context, const std::string& revision);
  Result<bool> delete_actor_if(Id actor, std::span<const ExpectedContext>);
  Result<void> post_message(Id context, const std::string& message_key, const Fields& signature);
  Result<void> cancel(Id context, const std::string& job_key) override;
  Result<void> requeue(Id context, const std::string& job_key) override;

  Result<std::vector<QueueInfo>> queues(Id context) override;
  Result<bool> set_queue_paused(Id context, const std::string& queue, bool paused) override;
  Result<std::uint32_t> purge_queue(Id context, const std::string& queue, std::uint32_t max) override;
  Result<std::vector<std::string>> queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                 std::uint32_t max) override;
  Result<void> resolve_dead_letter(Id context, const std::string& id, bool requeue) override;
  Result<std::vector<RunnerInfo>> runners(Id context) override;
  Result<std::vector<RunnerInfo>> held_runners(Id context) override;

  Result<std::vector<Fact>> journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                    std::uint32_t max) override;
  Result<std::vector<Fact>> journal_at(Id context, const std::string& queue,
                                       std::span<const std::uint64_t> revisions) override;
  Result<std::vector<JobStoreState>> job_states(Id context, std::span<const std::string> job_keys,
                                                bool with_positions) override;
  Result<JobsPage> jobs(Id context, const JobFilter&) override;
  Result<bool> repair(Id context, const std::string& job_key, const Repair&) override;
  Result<std::vector<MessageStoreState>> message_states(Id context, std::span<const std::string> message_keys) override;
  Result<bool> repair_message(Id context, const std::string& message_key, const std::string& inspection_digest,
                              const std::vector<std::string>& kinds) override;

  Result<Fields> load(Id context, const std::string& key) override;
  Result<EndedJob> ended_job(Id context, const std::string& job_key) override;
  Result<Fields> load_fields(Id context, const std::string& key, std::span<const std::string_view> names) override;
  Result<std::vector<Fields>> load_batch(Id context, std::span<const std::string> keys,
                                         std::span<const std::string_view> names) override;
  Result<void> save(Id context, const std::string& key, const Fields&) override;
  Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) override;
  Result<std::uint64_t> queue_length(Id context, const std::string& queue) override;
  Result<KnownQueues> known_queues(Id context) override;
  Result<Survey> survey(Id context, std::span<const std::string> queues) override;
  Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) override;
  Result<Tally> tally(Id context, std::uint64_t slot_ms, std::uint32_t slots) override;
  Result<std::vector<std::string>> anomalies(Id context, std::size_t max) override;
  Result<KeyOwner> owner_of_key(const std::string& pubkey) override;
  Result<void> record_refusal(Id context, const RefusalNote&) override;
  Result<std::vector<RefusalNote>> refusals(Id context, std::size_t max) override;
  Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms) override;

  Result<void> hold_runner(Id context, const Runner&, const RunnerHolder& self, std::uint32_t ttl_ms,
                           const std::string& replaces, RunnerHolder& held_by) override;
  Result<void> release_runner(Id context, Id runner, const RunnerHolder& self) override;
  Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) override;
  Result<std::vector<std::string>> msg_out_keys(Id context) override;
  Result<void> push_to_msg_out(Id context, const std::string& message_key) override;
  Result<void> send_to_topic(Id context, const std::string& topic, const std::string& message_key,
                             const Fields& message) override;
  Result<AcceptedMessage> accept_message(Id context, const AcceptMessage&) override;
  Result<void> close_message(Id context, const std::string& list, const std::string& message_key,
                             const std::string& reason) override;
  Result<AcceptedMessage> route_message(Id context, const RouteMessage&) override;
  Result<Arrival> receive_message(Id context, const std::string& message_key, const MessageState&,
                                  const Fields& fields) override;
  Result<DueMessages> due_messages(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms,
                                   bool clock_went_back) override;
  Result<void> complete_delivery(Id context, const OutboxEntry&, const MailResult&) override;
  Result<bool> answer_message(Id context, const AnswerMessage&) override;
  Result<void> cancel_message(Id context, const std::string& message_key) override;
  Result<std::uint64_t> append_remote_log(Id context, const std::string& message_key, const std::string& content_hash,
                                          const std::string& job_key, const std::vector<Log>&) override;
  Result<Id> reserve_jobs(Id context, Id caller, std::uint32_t count) override;
  Result<std::uint32_t> retire_messages(Id context, std::uint64_t retention_ms, std::uint32_t max) override;
  Result<StoreServerInfo> server_info(Id context) override;
  Result<std::uint64_t> now_ms() override;

 private:
  Result<std::vector<std::string>> pending_messages(Id context, const Arguments& lists);
  Result<AcceptedMessage> create_message_jobs(Id context, const Script&, const std::function<void(Arguments&)>& head,
                                              const std::string& message_key, const std::vector<MessageJob>&);
  // Scans all records of actors and indexes their public keys. scan_start is the start time of a scan that the script
  // actor_of_key has requested, and that is recorded as complete at the end. If it is empty, the scan is not recorded.
  Result<void> index_actors(const std::string& scan_start);
  Result<std::set<Id>> runner_ids(Id context, std::uint64_t now_ms, bool scan_records);
  Result<std::vector<RunnerInfo>> list_runners(Id context, bool scan_records);
  Result<std::vector<std::string>> scan(Id context, const Arguments& filter, std::size_t max);
  Result<LogPage> read_log(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                           std::uint32_t wait_ms);
  void record_heads(Id context, const Reply& heads);
  // Returns the script types that runners of the context serve, at most 10 s old; empty if they could not be read yet.
  const TypeNames& served_types(Id context);
  Result<void> release_unanswered_claims(Id context);
  // Waits until wait_replicas_ replicas have received all previous writes. Error unavailable: time-out.
  Result<void> await_replicas(Id context);

  // A call of the script `report`. Its arguments are views of the reports and of the other members.
  struct ReportCall {
    std::deque<Fields> ends;
    std::deque<std::string> digests;
    Arguments arguments;
    std::size_t report_count = 0;
    std::uint64_t started_us = 0;
  };
  void add_end_report(const EndReport&, ReportCall&) const;
  void encode_reports(std::span<const Report>, ReportCall&) const;
  void decode_answers(Id context, const Reply&, std::span<const Report>, std::vector<Result<void>>& out);
  Result<std::vector<Result<void>>> complete_report(Id context, std::span<const Report>,
                                                    std::vector<Result<void>> answers, std::uint64_t started_us);

  std::unique_ptr<ReportCall> pending_report_;   // call of begin_report() until finish_report()
  std::shared_ptr<JournalHeads> journal_heads_;  // null if revisions are not recorded
  struct ServedTypes {
    TypeNames types;
    std::chrono::steady_clock::time_point expires_at{};
  };
  std::map<Id, ServedTypes> served_types_;
  std::uint32_t wait_replicas_ = 0;
  // Returns whether the ACL of the server permits this database. Null if the URL names no user, so that no check is
  // needed.
  std::function<Result<bool>(std::uint32_t database)> check_database_access_;
  // Ids of claims whose reply was lost, by context. The server may have granted these claims, so
  // release_unanswered_claims() releases them.
  std::map<Id, std::vector<std::string>> lost_claim_ids_;
  std::set<Id> contexts_with_own_server_;
};

// Maximum size of a record that is read, as memory of Redis. Reading a record needs a multiple of this in the process.
inline constexpr std::uint64_t kMaxLoadBytes = 64ULL << 20;
// Checks the reply of a script that reads a record. Errors: not_found; too_large, whose message names the longest
// field.
Result<void> check_load_reply(const Reply&, Id context, const std::string& key);

tl::unexpected<Error> key_conflict_error();  // conflict: another actor has the public key

// Stores the answer to an approval. An approved job continues when its other prerequisites are met; a rejected job ends
// as error with the detail `prerequisite`. Returns false if the approval was given before. The caller checks the right
// to answer and the length of the comment (service/job_service.h). Errors: invalid (name); not_found (no such job, or
// it does not wait for this approval); conflict (the job has ended, waits no longer, has not been checked by an agent
// yet, or belongs to a flow, in which case the message contains the command to use); unsupported (the store is not a
// RedisStore).
Result<bool> answer_prerequisite(Store&, Id context, const std::string& job_key, const PrerequisiteAnswer&);

// Returns a thread-safe factory. It does not connect.
std::unique_ptr<StoreFactory> make_redis_stores(RedisStoreConfig);

}  // namespace mycojobs
