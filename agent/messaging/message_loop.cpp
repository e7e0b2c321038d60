#include "messaging/message_loop.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/parse.h"
#include "flows/flow_creation.h"
#include "flows/flow_plan.h"
#include "flows/flow_progress.h"
#include "flows/plan_limits.h"
#include "messaging/message_checks.h"
#include "messaging/transport/transport.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/trace_context.h"
#include "net/json_rpc_client.h"
#include "security/rights.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr const char* kMessagesIn = "msg_in";
constexpr std::uint64_t kMaxMailIdleMs = 15'000, kRetireIntervalMs = 5000;
constexpr std::uint64_t kMaxDeliveryMs = std::uint64_t{kSignatureWindowS} * 1000;  // validity of the signature
constexpr std::uint64_t kMaxAnswerMs = 7ULL * 24 * 3600 * 1000;  // time for which an answer is retried
constexpr std::uint64_t kMinMailRetryDelayMs = 200, kMaxMailRetryDelayMs = 30000, kLogIntervalMs = 500,
                        kCancelRetryDelayMs = 500;
constexpr std::size_t kMaxAnswerBytes = 700U << 10;  // limit for the jobs of one answer; another answer may follow
constexpr std::size_t kMaxFlowBytes = 200U << 10;
constexpr std::size_t kMaxAnswerLogLines = 500, kMaxAnswerLogBytes = 256U << 10;
constexpr std::size_t kMaxTopics = 1000;
constexpr std::uint32_t kMaxRetiredBatch = 100;
// Number of requests for files without a delay, in addition to two for each file.
constexpr std::uint64_t kMaxExtraFileRequests = 8;
constexpr const char* kLostDetail = "lost";
constexpr std::uint64_t kNoCapacityDelayMs = 10;  // delay if none of the due entries can be sent

std::uint64_t mail_retry_delay_ms(const Fields& state) {
  return std::min(kMaxMailRetryDelayMs, kMinMailRetryDelayMs << std::min<std::uint64_t>(number_of(state, "tries"), 10));
}

// Parses "<caller>:<id>", for example "12:101".
std::optional<std::pair<Id, Id>> parse_message_id(std::string_view text) {
  const std::size_t colon = text.find(':');
  std::uint64_t caller = 0, id = 0;
  if (colon == std::string_view::npos || !parse_u64(text.substr(0, colon), caller) ||
      !parse_u64(text.substr(colon + 1), id) || caller > UINT32_MAX || id > UINT32_MAX)
    return std::nullopt;
  return std::pair(static_cast<Id>(caller), static_cast<Id>(id));
}

// Returns whether the message itself causes the error. All other errors come from the store, this host or the settings
// of this coordinator, and can be fixed.
bool is_message_error(const Error& error) {
  return error.code != Code::unavailable && error.code != Code::internal && error.code != Code::unsupported &&
         error.code != Code::io;
}

// Returns whether the delivery was promised: the peer waits for an answer and its log lines, and the caller for the
// cancellation of a message that was delivered.
bool is_promised(const OutboxEntry& entry) {
  const bool is_delivered = number_of(entry.mark, "delivered_ms") > 0;
  return entry.kind == "answer" || entry.kind == "logs" || (entry.kind == "cancel" && is_delivered);
}

// Returns whether an entry ends with this error. If the peer did not answer, the transport may have refused the request
// because of a setting of this coordinator (no mycelium.url, an address that coordinator.networks does not allow).
// Another leader, or this one after a restart, can have other settings, so the entry is retried until its time is over.
// A promised entry is also retried after `denied` and `too_large`, because clocks, keys, records and limits of the peer
// can be repaired. Log lines that are too large are skipped instead, so that they do not delay the answer.
bool is_permanent_refusal(const OutboundRequest& outbound, const Error& error, bool is_from_peer) {
  if (!is_message_error(error)) return false;
  if (error.code == Code::denied) return is_from_peer && !is_promised(outbound.entry);
  const bool is_log_request = outbound.on_rejected && !outbound.file_request;
  return error.code != Code::too_large || is_log_request || !is_promised(outbound.entry);
}

std::vector<MessageJob> assign_queues(const std::vector<Job>& jobs) {
  std::vector<MessageJob> queued_jobs;
  queued_jobs.reserve(jobs.size());
  for (const Job& job : jobs) queued_jobs.push_back({job, queue_key(job.script_type)});
  return queued_jobs;
}

// Moves the fields of nodes that describe their jobs to the jobs, and returns the remaining fields of the nodes.
json move_node_fields(const std::vector<FlowNode>& nodes, std::vector<Job>& jobs) {
  const auto add_missing = [](auto& list, const auto& entries) {
    for (const auto& entry : entries) {
      if (std::find(list.begin(), list.end(), entry) == list.end()) list.push_back(entry);
    }
  };
  json remaining_nodes = json::array();
  for (const FlowNode& node : nodes) {
    json remaining{{"id", node.id}};
    if (!node.supervisor_url.empty()) remaining["supervisor_url"] = node.supervisor_url;
    remaining_nodes.push_back(std::move(remaining));
    const auto job =
        std::find_if(jobs.begin(), jobs.end(), [&](const Job& candidate) { return candidate.id == node.id; });
    if (job == jobs.end()) continue;  // The check of the definition will refuse this node.
    add_missing(job->dependends, node.depends);
    add_missing(job->prerequisites, node.prerequisites);
    if (job->name.empty()) job->name = node.name;
  }
  return remaining_nodes;
}

Result<void> check_message_jobs(const Message& message) {
  if (message.job.size() > kMaxMessageJobs)
    return fail(Code::too_large, "job: a message carries at most " + std::to_string(kMaxMessageJobs) + " jobs");
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    if (const auto problems = validate(message.job[i]); !problems.empty())
      return fail(Code::invalid, "job[" + std::to_string(i) + "]: " + join(problems));
  }
  if (message.message_type != MessageType::job && (!message.job.empty() || message.flow))
    return fail(Code::invalid, "message_type: a " + std::string(to_string(message.message_type)) + " carries no jobs");
  if (message.message_type == MessageType::job && message.job.empty() && !message.flow)
    return fail(Code::invalid, "job: the message carries no job and no flow");
  return {};
}

Result<void> check_no_inputs(const Message& message) {
  const bool has_inputs =
      std::any_of(message.job.begin(), message.job.end(), [](const Job& job) { return !job.remote_inputs.empty(); });
  if (has_inputs)
    return fail(Code::invalid, "given: is only for jobs on another host; in this context list the jobs in dependends");
  return {};
}

// Returns the reference of a received message, from its state.
Result<MessageRef> parse_origin(const Fields& state) {
  const auto ids = parse_message_id(field_of(state, "origin"));
  if (!ids) return fail(Code::invalid, "its state in the store does not name its sender");
  return MessageRef{ids->first, ids->second, std::string(field_of(state, "content"))};
}

// Returns the id of the bundle with the files of a received message.
Result<InboundBundleId> find_bundle_id(const Fields& state) {
  MJ_TRY(ref, parse_origin(state));
  return message_bundle_id(ref, std::string(field_of(state, "signer")));
}

// Returns the reference of a sent message.
MessageRef make_message_ref(const OutboxEntry& entry) {
  const auto ids = parse_message_id(std::string_view(entry.message_key).substr(8));
  return {ids ? ids->first : 0, ids ? ids->second : 0, std::string(field_of(entry.mark, "content"))};
}

}  // namespace

MessageLoop::RecordCache& MessageLoop::get_record_cache() {
  const std::uint64_t now = clock_.boot_ms();
  if (now - record_cache_.read_boot_ms > kRecordCacheMs) {
    record_cache_ = RecordCache();
    record_cache_.read_boot_ms = now;
  }
  return record_cache_;
}

Result<std::uint64_t> MessageLoop::read_time_ms() {
  RecordCache& cache = get_record_cache();
  if (!cache.now_ms) {
    MJ_TRY(now_ms, store_.now_ms());
    cache.now_ms = now_ms;
  }
  return *cache.now_ms;
}

Result<std::uint64_t> MessageLoop::read_time_s() {
  MJ_TRY(now, read_time_ms());
  return now / 1000;
}

Result<AclContext> MessageLoop::read_acl(EntryPoint entry_point) {
  RecordCache& cache = get_record_cache();
  if (!cache.acl_context) {
    MJ_TRY(acl_context, read_acl_context(store_, settings_.context, entry_point));
    cache.acl_context = std::move(acl_context);
  }
  AclContext result = *cache.acl_context;
  result.entry_point = entry_point;
  return result;
}

Result<Actor> MessageLoop::find_actor(Id id) {
  RecordCache& cache = get_record_cache();
  if (const auto cached = cache.actors.find(id); cached != cache.actors.end()) return cached->second;
  Actor actor;
  actor.id = id;
  auto record = store_.load(0, redis_key(actor));
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  if (record) actor = decode<Actor>(*record).record;
  cache.actors.emplace(id, actor);
  return actor;
}

// Logs an error that concerns a single message, so that the other messages are processed. Returns only the error
// unavailable.
Result<void> MessageLoop::log_and_continue(const std::string& subject, Result<void> result) const {
  if (result || result.error().code == Code::unavailable) return result;
  log(LogLevel::error, "supervisor", "context {}: {}: {}", settings_.context, subject, result.error().message);
  return {};
}

// Returns whether the entry can be sent now. An entry that cannot be sent is rescheduled. An expired entry needs no
// request.
Result<bool> MessageLoop::can_send(const OutboxEntry& entry, const SendDelay& send_delay) {
  const bool is_local = entry.kind == "expire" || (entry.kind == "cancel" && number_of(entry.mark, "flow") > 0);
  if (!send_delay || is_local) return true;
  const std::uint64_t deadline_ms = entry.kind == "send" ? number_of(entry.mark, "deliver_until") : 0;
  if (deadline_ms > 0) {
    MJ_TRY(now, read_time_ms());
    if (now >= deadline_ms) return true;
  }
  const std::uint64_t pause_ms = send_delay(entry);
  if (pause_ms == 0) return true;
  MJ_CHECK(store_.complete_delivery(settings_.context, entry, {MailResult::Kind::retry, pause_ms, "", ""}));
  return false;
}

Result<MessageLoop::Batch> MessageLoop::run_round(std::uint32_t max_requests, const SendDelay& send_delay) {
  record_cache_ = RecordCache();
  record_cache_.read_boot_ms = clock_.boot_ms();
  MJ_TRY(msg_out_keys, store_.msg_out_keys(settings_.context));
  for (const std::string& key : msg_out_keys) MJ_CHECK(log_and_continue(key, route_message(key)));
  Batch batch;
  MJ_TRY(due, store_.due_messages(settings_.context, std::max(1U, max_requests), kClaimTimeoutMs, clock_went_back_));
  clock_went_back_ = due.now_ms < last_round_ms_;
  last_round_ms_ = due.now_ms;
  for (const std::string& key : due.inbox) MJ_CHECK(log_and_continue(key, process_inbound(key)));
  bool has_sendable_entry = false;
  for (const OutboxEntry& entry : due.outbox) {
    MJ_TRY(is_sendable, can_send(entry, send_delay));
    if (!is_sendable) continue;
    has_sendable_entry = true;
    auto request = make_request(entry);
    if (!request) {
      MJ_CHECK(log_and_continue(entry.entry, fail_entry(entry, request.error())));
    } else if (*request) {
      batch.requests.push_back(std::move(**request));
    }
  }
  if (const std::uint64_t now = clock_.boot_ms(); now >= next_retire_ms_) {
    next_retire_ms_ = now + kRetireIntervalMs;
    if (settings_.retention_ms > 0) {
      MJ_TRY(retired_count, store_.retire_messages(settings_.context, settings_.retention_ms, kMaxRetiredBatch));
      if (retired_count >= kMaxRetiredBatch) next_retire_ms_ = now;
    }
  }
  const bool is_full = due.outbox.size() == max_requests;
  const bool has_more =
      clock_went_back_ || !msg_out_keys.empty() || !due.inbox.empty() || (is_full && has_sendable_entry);
  batch.next_ms = has_more ? 0 : due.next_ms == 0 ? kMaxMailIdleMs : std::min(kMaxMailIdleMs, due.next_ms);
  if (!has_more && is_full) batch.next_ms = std::min(batch.next_ms, kNoCapacityDelayMs);
  return batch;
}

// Handles an entry for which no request could be made. Errors of the store are returned; an invalid message ends.
Result<void> MessageLoop::fail_entry(const OutboxEntry& entry, const Error& error) {
  if (error.code == Code::unavailable) return tl::unexpected<Error>(error);
  const MailResult retry{MailResult::Kind::retry, mail_retry_delay_ms(entry.mark), "", error.message};
  const MailResult failed{MailResult::Kind::failed, 0, kLostDetail, error.message};
  return store_.complete_delivery(settings_.context, entry, is_message_error(error) ? failed : retry);
}

// ---- outgoing messages ----

Result<void> MessageLoop::route_message(const std::string& message_key) {
  auto message_record = store_.load(settings_.context, message_key);
  if (!message_record && message_record.error().code == Code::not_found)
    return {};  // The message was deleted; its entry is dropped.
  Result<AcceptedMessage> result = tl::unexpected<Error>(Error{});
  std::string log_name = message_key;
  if (!message_record) {
    result = tl::unexpected<Error>(message_record.error());
  } else {
    auto decoded = decode<Message>(*message_record);
    log_name = append_trace_id(message_key, decoded.record.traceparent);
    if (!decoded.ok()) {
      result = fail(Code::invalid, join(decoded.problems));
    } else {
      auto request = route_request(message_key, decoded.record);
      if (!request) {
        result = tl::unexpected<Error>(std::move(request).error());
      } else if (request->message_key.empty()) {
        return {};  // The message is for this context and has arrived.
      } else {
        result = store_.route_message(settings_.context, *request);
      }
    }
  }
  if (result || result.error().code == Code::unavailable)
    return result ? Result<void>() : tl::unexpected<Error>(std::move(result).error());
  log(LogLevel::warn, "supervisor", "context {}: {} is not sent: {}", settings_.context, log_name,
      truncate_utf8(result.error().message, kMaxReasonBytes));
  if (result.error().code == Code::denied)
    MJ_CHECK(
        store_.record_refusal(settings_.context, {0, 0, 0, "send", message_key + ": " + result.error().message, ""}));
  return store_.close_message(settings_.context, "msg_out_coordinator", message_key, result.error().message);
}

// Checks signature and permissions of the sender and finds the destination (step 2 of the specification). An empty key
// means that the message is for this context.
Result<RouteMessage> MessageLoop::route_request(const std::string& message_key, Message& message) {
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  MJ_TRY(sender, find_actor(message.caller_id));
  MJ_TRY(now, read_time_s());
  MJ_CHECK(check_message(message, sender, now));
  MJ_TRY(content, content_hash(message));
  const std::string signer = message.signer;
  const bool names_context = message.context_id > 0;
  MJ_CHECK(fill_and_check_sender(message, {message.caller_id, settings_.context}));
  MJ_TRY(acl_context, read_acl(EntryPoint::message));
  MJ_CHECK(check_permission(message.caller_id, Action::create, acl_context, {.name = "messages"}));
  MJ_CHECK(check_message_jobs(message));
  if (message.target_address.empty() && message.target_context == settings_.context) {
    MJ_CHECK(check_no_inputs(message));
    const MessageState state{content, {{"own", "1"}, {"signer", signer}}};
    MJ_TRY(arrival, store_.receive_message(settings_.context, message_key, state, {}));
    if (arrival == Arrival::content_conflict)
      return fail(Code::conflict, "id: a message with this id was sent before with other content");
    return RouteMessage{};  // If the inbox is full, the message waits until there is space.
  }
  if (!names_context)
    return fail(Code::invalid,
                "context_id: is missing; the signed text must name it, since answers are sent to this context");
  if (!message.target_address.empty()) {
    if (!settings_.has_public_key)
      return fail(Code::denied,
                  "coordinator.key: is not set, so other hosts reject messages of this coordinator; create a key with "
                  "`mycojobs key new NAME` and set it");
    MJ_TRY(peer, peers_.find(store_, settings_.context, message.target_address));
    if (message.target_key != peer)
      return fail(Code::denied,
                  "target_key: " + (message.target_key.empty() ? "is absent" : excerpt(message.target_key, 80)) +
                      ", and the coordinator at " + excerpt(message.target_address, 120) + " is " + peer +
                      ": run mycojobs message sign " + message_key.substr(8) + " to set it");
  }
  MJ_CHECK(check_message_files(store_, settings_.files, settings_.context, message));
  RouteMessage request{message_key, {content, {}}, kMaxDeliveryMs, std::uint64_t{message.timeout_result} * 1000, {}};
  request.mark.extra_fields = {
      {"address", message.target_address}, {"context", std::to_string(message.target_context)}, {"signer", signer}};
  if (message.timeout > 0) request.delivery_timeout_ms = std::uint64_t{message.timeout} * 1000;
  // A stored message counts as acknowledged.
  const std::uint64_t ack_ms = std::uint64_t{message.timeout_ack} * 1000;
  const bool is_ack_earlier = ack_ms > 0 && ack_ms < request.delivery_timeout_ms;
  if (is_ack_earlier) request.delivery_timeout_ms = ack_ms;
  request.mark.extra_fields.emplace_back("limit", is_ack_earlier ? "timeout_ack" : "timeout");
  // The job records of a flow are stored at the remote host.
  if (message.flow) request.mark.extra_fields.emplace_back("whole", "1");
  if (!message.flow) request.jobs = assign_queues(message.job);
  return request;
}

// ---- received messages ----

Result<void> MessageLoop::process_inbound(const std::string& message_key) {
  auto message_record = store_.load(settings_.context, message_key);
  auto state = store_.load(settings_.context, message_state_key(message_key));
  for (const auto* loaded : {&message_record, &state}) {
    if (!*loaded && loaded->error().code == Code::unavailable) return tl::unexpected<Error>(loaded->error());
  }
  Result<void> result;
  if (!message_record) {
    result = tl::unexpected<Error>(message_record.error());
  } else if (auto decoded = decode<Message>(*message_record); !decoded.ok()) {
    result = fail(Code::invalid, join(decoded.problems));
  } else if (!state) {
    auto local_state = accept_local_message(message_key, decoded.record);
    result = local_state ? process_inbound(message_key, decoded.record, *local_state)
                         : Result<void>(tl::unexpected<Error>(std::move(local_state).error()));
  } else {
    result = process_inbound(message_key, decoded.record, *state);
  }
  if (result || result.error().code == Code::unavailable) return result;
  if (state && result.error().code == Code::unsupported) {
    MJ_TRY(must_wait, must_wait_for_settings(message_key, *state, result.error()));
    if (must_wait) return {};
  }
  log(LogLevel::warn, "supervisor", "context {}: {} refused: {}", settings_.context,
      append_trace_id(message_key, message_record ? decode<Message>(*message_record).record.traceparent : ""),
      truncate_utf8(result.error().message, kMaxReasonBytes));
  if (result.error().code == Code::denied)
    MJ_CHECK(store_.record_refusal(settings_.context,
                                   {0, 0, 0, "deliver", message_key + ": " + result.error().message, ""}));
  auto closed = store_.close_message(settings_.context, kMessagesIn, message_key, result.error().message);
  return closed || closed.error().code == Code::not_found ? Result<void>() : closed;
}

// Returns whether an accepted message waits for a coordinator that has the setting: the message stays in mj:inbox,
// where due_messages() returns it again after kClaimTimeoutMs, until its time is over.
Result<bool> MessageLoop::must_wait_for_settings(const std::string& message_key, const Fields& state,
                                                 const Error& reason) {
  MJ_TRY(now, read_time_ms());
  if (now > number_of(state, "came_ms") + kMaxAnswerMs) return false;
  log(LogLevel::warn, "supervisor", "context {}: {} waits: {}", settings_.context, message_key, reason.message);
  return true;
}

// Checks a message that a client has pushed to msg_in, and returns its state.
Result<Fields> MessageLoop::accept_local_message(const std::string& message_key, const Message& message) {
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  MJ_TRY(sender, find_actor(message.caller_id));
  MJ_TRY(now, read_time_s());
  MJ_CHECK(check_message(message, sender, now));
  if (!message.target_address.empty())
    return fail(Code::denied, "target_address: it is signed for the coordinator at " +
                                  excerpt(message.target_address, 120) + ": push it to msg_out");
  if (message.target_context != settings_.context)
    return fail(Code::denied,
                "target_context: the message is signed for context " + std::to_string(message.target_context));
  MJ_TRY(content, content_hash(message));
  MessageState state{content, {{"own", "1"}, {"signer", message.signer}}};
  MJ_TRY(arrival, store_.receive_message(settings_.context, message_key, state, {}));
  if (arrival == Arrival::content_conflict)
    return fail(Code::conflict, "id: a message with this id was received before with other content");
  state.extra_fields.emplace_back("content", content);
  return state.extra_fields;
}

Result<void> MessageLoop::process_inbound(const std::string& message_key, Message& message, const Fields& state) {
  const bool is_own = !field_of(state, "own").empty();
  // Other clients can write to records, so the content must be the one that was checked when the message arrived.
  MJ_TRY(content, content_hash(message));
  if (redis_key(message) != message_key || content != field_of(state, is_own ? "content" : "stored"))
    return fail(Code::conflict, "another client has changed its record since it was received");
  if (message.context_id == 0) message.context_id = settings_.context;
  // Permissions may have been revoked since the message arrived.
  MJ_TRY(acl_context, read_acl(is_own ? EntryPoint::message : EntryPoint::rpc));
  MJ_CHECK(check_permission(message.caller_id, Action::create, acl_context, {.name = "messages"}));
  // A message from a remote host was normalized on entry. A local record stays as it was signed and is normalized here.
  if (is_own) MJ_CHECK(fill_and_check_sender(message, {message.caller_id, settings_.context}));
  MJ_CHECK(check_message_jobs(message));
  if (is_own || message.flow) MJ_CHECK(check_no_inputs(message));
  if (message.message_type != MessageType::job)
    return store_.close_message(settings_.context, kMessagesIn, message_key, "");
  AcceptMessage request{kMessagesIn, message_key, {}};
  if (message.flow) {
    MJ_TRY(flow, start_flow(message_key, message));
    request.flow = flow;
  } else {
    if (is_own) {
      request.jobs = assign_queues(message.job);
    } else {
      MJ_TRY(jobs, assign_local_ids(message, request));
      request.jobs = std::move(jobs);
    }
    if (!message.topic.empty()) {
      MJ_TRY(queue, find_topic_queue(message.topic));
      for (MessageJob& job : request.jobs) job.queue = queue;
    }
  }
  MJ_TRY(retained, retain_received_files(message, request, state));  // The files are retained until the jobs exist.
  if (retained) request.files_holder = retained->holder();
  MJ_TRY(accepted, store_.accept_message(settings_.context, request));
  if (retained) settings_.files.store->remove_bundle(settings_.context, find_bundle_id(state).value());
  if (!accepted.repeated)
    log(LogLevel::info, "supervisor", "context {}: {}: {} taken", settings_.context,
        append_trace_id(message_key, message.traceparent),
        request.flow > 0 ? "flow " + std::to_string(request.flow) : count_with_noun(accepted.job_keys.size(), "job"));
  return {};
}

// Links the received files into the folders of the jobs. Returns null if the message has no files. Error `unsupported`:
// this host does not have the files, since a coordinator with another state_dir has received them.
Result<std::unique_ptr<ArtifactStore::RetainedFiles>> MessageLoop::retain_received_files(const Message& message,
                                                                                         const AcceptMessage& request,
                                                                                         const Fields& state) {
  std::vector<JobFiles> job_files;
  for (const MessageJob& entry : request.jobs) {
    MJ_TRY(files, parse_input_files(entry.job));
    if (!files.empty()) job_files.push_back({redis_key(entry.job), std::move(files)});
  }
  if (job_files.empty() || message.flow) return std::unique_ptr<ArtifactStore::RetainedFiles>();
  if (!settings_.files.store)
    return fail(Code::unsupported, "given: this coordinator has no state_dir for files; set state_dir");
  MJ_TRY(bundle, find_bundle_id(state));
  auto retained = settings_.files.store->retain_files(store_, settings_.context, bundle, job_files);
  if (!retained && retained.error().code == Code::not_found)
    return fail(Code::unsupported,
                "given: " + retained.error().message +
                    " on this host: give this coordinator the state_dir of the coordinator that received the message");
  return retained;
}

// Returns the jobs of the message with local ids. The ids of the sender are only used for references between these
// jobs.
Result<std::vector<MessageJob>> MessageLoop::assign_local_ids(Message& message, AcceptMessage& request) {
  const auto count = static_cast<std::uint32_t>(message.job.size());
  MJ_TRY(first_id, store_.reserve_jobs(settings_.context, message.caller_id, count));
  std::map<Id, Id> local_ids;
  for (std::uint32_t i = 0; i < count; ++i) local_ids[message.job[i].id] = first_id + i;
  if (local_ids.size() != count) return fail(Code::invalid, "job: an id is listed twice");
  for (std::uint32_t i = 0; i < count; ++i) {
    Job& job = message.job[i];
    const std::string prefix = "job[" + std::to_string(i) + "].";
    request.origins.push_back(job_key(job.caller_id, job.id));
    for (Id& dependency : job.dependends) {
      const auto local_id = local_ids.find(dependency);
      if (local_id == local_ids.end())
        return fail(Code::invalid,
                    prefix + "dependends: " + std::to_string(dependency) + " is not a job of the message");
      dependency = local_id->second;
    }
    job.id = first_id + i;
    job.caller_id = message.caller_id;
    job.context_id = settings_.context;
    job.idempotency_key.clear();  // The key is valid in the context of the sender only.
    if (job.traceparent.empty()) job.traceparent = message.traceparent;
    job.unknown = {{"of_message", redis_key(message)}};
  }
  return assign_queues(message.job);
}

// Returns the queue of the runner with this topic. All runner records are searched only if the cached record has
// another topic.
Result<std::string> MessageLoop::find_topic_queue(const std::string& topic) {
  const auto has_topic = [&](const std::string& key) -> Result<bool> {
    constexpr std::string_view kFields[] = {"topic"};
    auto fields = store_.load_fields(settings_.context, key, kFields);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    if (!fields) return false;
    const std::string_view runner_topic = field_of(*fields, "topic");
    return (runner_topic.empty() ? "runner" + key.substr(7) : std::string(runner_topic)) == topic;
  };
  const auto queue = [](const std::string& key) { return runner_queue(key.substr(7)); };
  if (const auto cached = topics_.find(topic); cached != topics_.end()) {
    MJ_TRY(is_valid, has_topic(cached->second));
    if (is_valid) return queue(cached->second);
    topics_.erase(cached);
  }
  MJ_TRY(keys, store_.keys(settings_.context, "runner:", 10000));
  for (const std::string& key : keys) {
    MJ_TRY(is_match, has_topic(key));
    if (!is_match) continue;
    if (topics_.size() >= kMaxTopics) topics_.clear();
    topics_[topic] = key;
    return queue(key);
  }
  return fail(Code::not_found,
              "topic: no runner of context " + std::to_string(settings_.context) + " has the topic " + excerpt(topic));
}

// Creates and starts the flow of a message, from its definition or from its jobs. Repeated calls create one flow.
Result<Id> MessageLoop::start_flow(const std::string& message_key, const Message& message) {
  json definition;
  if (!message.flow->definition.empty()) {
    MJ_TRY(parsed, parse_json(message.flow->definition));
    definition = std::move(parsed);
  } else {
    std::vector<Job> jobs = message.job;
    const json nodes = move_node_fields(message.flow->nodes, jobs);
    MJ_TRY(built, build_definition(message.flow->name, message.flow->env_vars, jobs, nodes));
    definition = std::move(built);
  }
  ParsedPlan read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "flow: " + join(read.problems));
  if (auto within_limits = check_jobs(*read.plan, settings_.limits); !within_limits)
    return fail(within_limits.error(), "flow");
  const NewFlow request{settings_.context, message.caller_id, message.flow->env_vars, "message " + message_key, ""};
  MJ_TRY(flow, create_flow(flows_, *read.plan, request));
  ProgressRequest start;
  start.context = settings_.context;
  start.flow = flow.id;
  start.start = StartRun{message_key, message.caller_id};
  MJ_CHECK(advance_run(flows_, runs_, start));
  return flow.id;
}

// ---- requests to remote hosts ----

Result<OutboundRequest> MessageLoop::seal_request(const OutboxEntry& entry, EnvelopeKind kind, const json& body,
                                                  std::string address, Id context) {
  MJ_TRY(now, read_time_s());
  MJ_TRY(envelope, seal({kind, context, now, {}}, body, *settings_.key));
  OutboundRequest request{
      entry, std::move(address), encode_rpc_request("message.deliver", {{"envelope", std::move(envelope)}}), {}};
  MJ_CHECK(check_request_size(request.request.size()));
  return request;
}

namespace {

// Returns the end of a message that was not delivered in time.
MailResult make_timeout_result(const Fields& state) {
  const std::string_view limit = field_of(state, "limit");
  if (limit == "cancelled") return {MailResult::Kind::failed, 0, "cancelled", "cancelled before it was delivered"};
  const std::string last_error(field_of(state, "why"));
  return {MailResult::Kind::failed, 0, "timeout",
          (limit == "timeout_ack" ? "timeout_ack: it was not acknowledged in time"
                                  : "timeout: it was not delivered in time") +
              (last_error.empty() ? "" : ": " + last_error)};
}

}  // namespace

Result<std::optional<OutboundRequest>> MessageLoop::make_request(const OutboxEntry& entry) {
  const auto to_optional = [](Result<OutboundRequest> request) -> Result<std::optional<OutboundRequest>> {
    if (!request) return tl::unexpected<Error>(std::move(request).error());
    return std::optional(std::move(*request));
  };
  const bool is_pending = field_of(entry.mark, "state") == kMessageStateAway;
  const bool is_answered =
      field_of(entry.mark, "answer") != kAnswerStateDue && field_of(entry.mark, "answer") != kAnswerStateWanted;
  const MailResult closed{MailResult::Kind::closed, 0, "", ""};
  if (entry.kind == "send" && is_pending) {
    MJ_TRY(now, read_time_ms());
    const std::uint64_t deadline_ms = number_of(entry.mark, "deliver_until");
    if (deadline_ms == 0 || now < deadline_ms) return to_optional(make_send_request(entry));
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, make_timeout_result(entry.mark)));
  } else if (entry.kind == "expire" && is_pending) {
    const MailResult expired{MailResult::Kind::failed, 0, "timeout", "timeout_result: no answer was received in time"};
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, expired));
  } else if (entry.kind == "cancel" && number_of(entry.mark, "flow") > 0) {
    MJ_CHECK(cancel_flow(entry));
  } else if (entry.kind == "cancel" &&
             (!field_of(entry.mark, "jobs").empty() || !field_of(entry.mark, "whole").empty())) {
    const bool is_delivered = !is_pending || number_of(entry.mark, "delivered_ms") > 0;
    if (is_delivered) return to_optional(make_cancel_request(entry));
    MJ_CHECK(
        store_.complete_delivery(settings_.context, entry, {MailResult::Kind::retry, kCancelRetryDelayMs, "", ""}));
  } else if (entry.kind == "logs" && !is_answered) {
    return make_log_request(entry);
  } else if (entry.kind == "answer" && !is_answered) {
    if (!field_of(entry.mark, "stream").empty()) {
      auto lines = make_log_request(entry);
      if (!lines) return skip_log_lines(entry, lines.error());
      if (*lines) return lines;
    }
    return to_optional(make_answer_request(entry));
  } else {
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, closed));
  }
  return std::optional<OutboundRequest>();
}

// Disables the log lines of an answer after an error, so that they do not prevent the answer.
Result<std::optional<OutboundRequest>> MessageLoop::skip_log_lines(const OutboxEntry& entry, const Error& reason) {
  if (reason.code == Code::unavailable) return tl::unexpected<Error>(reason);
  log(LogLevel::warn, "supervisor", "context {}: {}: the log lines of its jobs are dropped: {}", settings_.context,
      entry.entry, truncate_utf8(reason.message, kMaxReasonBytes));
  const MailResult without_logs{MailResult::Kind::retry, 0, "", "", {{"stream", ""}}};
  MJ_CHECK(store_.complete_delivery(settings_.context, entry, without_logs));
  return std::optional<OutboundRequest>();
}

Result<OutboundRequest> MessageLoop::make_send_request(const OutboxEntry& entry) {
  MJ_TRY(message_record, store_.load(settings_.context, entry.message_key));
  Message message = decode<Message>(message_record).record;
  message.unknown.clear();  // Unknown fields are not signed, and the receiver does not use them.
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  MJ_TRY(content, content_hash(message));
  if (content != field_of(entry.mark, "content"))
    return fail(Code::conflict, "another client has changed its record since it was signed");
  MJ_TRY(files, find_dependency_files(message));
  if (const auto requested_file = parse_requested_file_text(field_of(entry.mark, "want"))) {
    for (const JobFiles& job : files) {
      for (const FileContent& file : job.files) {
        if (job.job_key == requested_file->job_key && file.sha256 == requested_file->sha256)
          return make_file_request(entry, make_message_ref(entry), job.job_key, file, *requested_file,
                                   message.target_context);
      }
    }  // A request for a file of another message is ignored.
  }
  json body{{"message", to_json(message)}};
  MJ_TRY(request, seal_request(entry, EnvelopeKind::message, body, std::string(field_of(entry.mark, "address")),
                               message.target_context));
  request.on_success = {MailResult::Kind::delivered, 0, "", ""};
  for (const JobFiles& job : files) request.files += job.files.size();
  return request;
}

// Returns the next piece of a requested file, from the requested offset on.
Result<OutboundRequest> MessageLoop::make_file_request(const OutboxEntry& entry, const MessageRef& ref,
                                                       const std::string& job_key, const FileContent& file,
                                                       const RequestedFile& requested_file, Id context) {
  if (!settings_.files.store) return fail(Code::not_found, "this coordinator has no state_dir for files");
  MJ_TRY(bytes, settings_.files.store->read_file(store_, settings_.context, job_key, file,
                                                 requested_file.received_bytes, kMaxPieceBytes));
  json body = make_piece_body(ref, file, requested_file.received_bytes, bytes);
  const bool is_answer = entry.kind == "answer";
  if (!is_answer) body["by"] = field_of(entry.mark, "signer");
  MJ_TRY(request, seal_request(entry, EnvelopeKind::file, body, std::string(field_of(entry.mark, "address")), context));
  request.file_request = requested_file;
  request.file_bytes = file.bytes;
  // After a rejection the receiver no longer waits for the file, so the message or answer is sent again.
  request.on_rejected = MailResult{MailResult::Kind::retry, 0, "", "", {{"want", ""}}};
  return request;
}

// Returns no value if no file was requested, or the requested file is not available.
Result<std::optional<OutboundRequest>> MessageLoop::make_answer_file_request(const OutboxEntry& entry,
                                                                             const MessageRef& ref) {
  const auto requested_file = parse_requested_file_text(field_of(entry.mark, "want"));
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  const auto position =
      requested_file ? std::find(origins.begin(), origins.end(), requested_file->job_key) : origins.end();
  const auto index = static_cast<std::size_t>(position - origins.begin());
  if (index >= std::min(keys.size(), origins.size())) return std::optional<OutboundRequest>();
  constexpr std::string_view kFields[] = {"artifacts"};
  auto record = store_.load_fields(settings_.context, keys[index], kFields);
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  for (const FileContent& file : parse_file_contents(record ? std::string(field_of(*record, "artifacts")) : "")) {
    if (file.sha256 != requested_file->sha256) continue;
    auto sealed = make_file_request(entry, ref, keys[index], file, *requested_file,
                                    static_cast<Id>(number_of(entry.mark, "from")));
    if (!sealed && sealed.error().code == Code::not_found) break;
    if (!sealed) return tl::unexpected<Error>(std::move(sealed).error());
    return std::optional(std::move(*sealed));
  }
  return std::optional<OutboundRequest>();
}

// Cancels the flow of a received message on request of its sender. The end of the flow is sent as any other end.
Result<void> MessageLoop::cancel_flow(const OutboxEntry& entry) {
  ProgressRequest request;
  request.context = settings_.context;
  request.flow = static_cast<Id>(number_of(entry.mark, "flow"));
  request.control = FlowControl{};
  request.control->verb = FlowControl::Verb::cancel;
  request.control->comment = "the sender of " + entry.message_key + " no longer waits";
  auto result = advance_run(flows_, runs_, request);
  if (!result && result.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(result).error());
  // An error means that the flow has ended already.
  return store_.complete_delivery(settings_.context, entry, {MailResult::Kind::closed, 0, "", ""});
}

Result<OutboundRequest> MessageLoop::make_cancel_request(const OutboxEntry& entry) {
  json jobs = json::array();
  for (const std::string& key : split_words(field_of(entry.mark, "jobs"))) {
    constexpr std::string_view kFields[] = {"status"};
    auto job = store_.load_fields(settings_.context, key, kFields);
    if (!job && job.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(job).error());
    if (!job || field_of(*job, "status") == kJobStatusError || !field_of(entry.mark, "carried").empty())
      jobs.push_back(key);
  }
  json body{
      {"of", to_json(make_message_ref(entry))}, {"by", field_of(entry.mark, "signer")}, {"jobs", std::move(jobs)}};
  if (!field_of(entry.mark, "whole").empty()) body["flow"] = true;
  return seal_request(entry, EnvelopeKind::cancel, body, std::string(field_of(entry.mark, "address")),
                      static_cast<Id>(number_of(entry.mark, "context")));
}

namespace {

// Returns the record of a flow for an answer; without its nodes if the flow is large.
json encode_flow(Flow flow) {
  flow.unknown.clear();
  flow.definition.clear();
  flow.env_vars.clear();
  flow.notify.clear();
  json encoded = to_json(flow);
  if (dump_json(encoded).size() <= kMaxFlowBytes) return encoded;
  flow.nodes.clear();
  return to_json(flow);
}

// Encodes a completed job for an answer. ran_as is "<context> <key>" of the job on this host.
json encode_job(const std::string& origin, const std::string& ran_as, const Job& job) {
  Job sent;
  sent.status = job.status;
  sent.detail = job.detail;
  sent.error = job.error;
  sent.error_info = job.error_info;
  sent.result = job.result;
  sent.result_json = job.result_json;
  sent.usage = job.usage;
  sent.layers = job.layers;
  sent.receipt = job.receipt;
  sent.artifacts = set_object_store(job.artifacts, "");
  sent.artifacts_dropped = job.artifacts_dropped;
  sent.attempt = job.attempt;
  sent.started_ms = job.started_ms;
  json encoded = to_json(sent);
  encoded["key"] = origin;
  encoded["ran_as"] = ran_as;
  return encoded;
}

}  // namespace

// Adds the artifacts of a job to the answer if this host has them. Returns why they exceed the limit, or an empty text.
Result<std::string> MessageLoop::add_artifacts(const OutboxEntry& entry, const std::string& job_key, const Job& job,
                                               json& encoded_job) {
  const auto files = parse_file_contents(job.artifacts);
  if (files.empty()) return std::string();
  const std::uint64_t bytes = sum_bytes(files);
  if (bytes > settings_.files.max_bytes)
    return "its artifacts have " + std::to_string(bytes) + " bytes; " + kMessageFilesSetting + " there is " +
           std::to_string(settings_.files.max_bytes);
  bool is_available = false;
  if (settings_.files.store && field_of(entry.mark, "bare").empty()) {
    MJ_TRY(has_files, settings_.files.store->has_files(store_, settings_.context, job_key, files));
    is_available = has_files;
  }
  encoded_job["files"] = is_available;
  return std::string();
}

// Returns the jobs from index `first` on that fit into one answer, and sets `next` to the index after them. The total
// size of their files is limited as for one job, so that the receiver has space for them.
Result<json> MessageLoop::collect_answer_jobs(const OutboxEntry& entry, std::size_t first, std::size_t& next) {
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  json jobs = json::array();
  std::size_t bytes = 0;
  std::uint64_t file_bytes = 0;
  for (next = first; next < std::min(keys.size(), origins.size()); ++next) {
    auto record = store_.load(settings_.context, keys[next]);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    Job job = record ? decode<Job>(*record).record : Job();
    if (!record || (job.status != JobStatus::finished && job.status != JobStatus::error)) {
      job = Job();
      job.status = JobStatus::error;
      job.detail = kLostDetail;
      job.error = "its record there was deleted";
    }
    const std::string ran_as = std::to_string(settings_.context) + ' ' + keys[next];
    json encoded_job = encode_job(origins[next], ran_as, job);
    MJ_TRY(limit_error, add_artifacts(entry, keys[next], job, encoded_job));
    std::size_t size = dump_json(encoded_job).size();
    std::string reason = std::move(limit_error);
    if (reason.empty() && size > kMaxAnswerBytes)
      reason = "its result and error have " + std::to_string(size) + " bytes; an answer carries " +
               std::to_string(kMaxAnswerBytes);
    if (!reason.empty()) {
      Job too_large;
      too_large.status = JobStatus::error;
      too_large.detail = "too_large";
      too_large.error = "the job ended as " + std::string(to_string(job.status)) + ", and " + reason + ". It is " +
                        keys[next] + " in context " + std::to_string(settings_.context) + " there";
      encoded_job = encode_job(origins[next], ran_as, too_large);
      size = dump_json(encoded_job).size();
    }
    const auto files = find_job_files(encoded_job);
    const std::uint64_t job_bytes = files ? accounted_bytes(files->files) : 0;
    if (!jobs.empty() && (bytes + size > kMaxAnswerBytes || file_bytes + job_bytes > settings_.files.max_bytes)) break;
    bytes += size;
    file_bytes += job_bytes;
    jobs.push_back(std::move(encoded_job));
  }
  return jobs;
}

Result<OutboundRequest> MessageLoop::make_answer_request(const OutboxEntry& entry) {
  MJ_TRY(ref, parse_origin(entry.mark));
  auto message_record = store_.load(settings_.context, entry.message_key);
  if (!message_record && message_record.error().code == Code::unavailable)
    return tl::unexpected<Error>(std::move(message_record).error());
  Message message = message_record ? decode<Message>(*message_record).record : Message();
  if (!message_record) {
    message.status = MessageStatus::error;
    message.error = "its record there was deleted";
  }
  MJ_TRY(file_request, make_answer_file_request(entry, ref));
  if (file_request) return std::move(*file_request);
  std::size_t next = 0;
  MJ_TRY(jobs, collect_answer_jobs(entry, number_of(entry.mark, "told"), next));
  const bool is_last = next >= split_words(field_of(entry.mark, "jobs")).size();
  json body{{"of", to_json(ref)},
            {"status", to_string(message.status)},
            {"error", truncate_utf8(to_utf8(message.error), kMaxReasonBytes)},
            {"jobs", std::move(jobs)},
            {"last", is_last}};
  if (const std::uint64_t flow = number_of(entry.mark, "flow"); flow > 0) {
    auto record = store_.load(settings_.context, "flow:" + std::to_string(flow));
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    if (record) body["flow"] = encode_flow(decode<Flow>(*record).record);
  }
  const std::string address(field_of(entry.mark, "address"));
  const auto recipient = static_cast<Id>(number_of(entry.mark, "from"));
  auto sealed = seal_request(entry, EnvelopeKind::answer, body, address, recipient);
  if (!sealed && is_message_error(sealed.error())) {
    const std::string reason =
        "the job ended as " + std::string(to_string(message.status)) + " there, but its answer cannot be sent: ";
    const json brief{{"of", to_json(ref)},
                     {"status", to_string(MessageStatus::error)},
                     {"error", reason + truncate_utf8(sealed.error().message, kMaxReasonBytes)},
                     {"jobs", json::array()},
                     {"last", true}};
    return seal_request(entry, EnvelopeKind::answer, brief, address, recipient);
  }
  if (!sealed) return sealed;
  OutboundRequest request = std::move(*sealed);
  for (const json& job : body["jobs"]) {
    if (job.value("files", false)) request.files += job["artifacts"].size();
  }
  if (!is_last)
    request.on_success = {MailResult::Kind::retry, 0, "", "", {{"told", std::to_string(next)}, {"asked", ""}}};
  return request;
}

// Returns the next log lines of a job that will not be deleted. The tail of the output (Log::size) moves until the job
// has ended. The receiver cannot delete lines, so it would have more lines than the receipt covers.
Result<std::vector<Log>> MessageLoop::read_final_lines(const OutboxEntry& entry, const std::string& job_key,
                                                       std::uint64_t after_seq) {
  constexpr std::uint64_t kAfterAllLines = 1ULL << 53;
  MJ_TRY(page, store_.logs(settings_.context, job_key, after_seq, kMaxAnswerLogLines, 0));
  const auto is_tail = [](const Log& line) { return line.size > 0; };
  const auto tail = std::find_if(page.lines.begin(), page.lines.end(), is_tail);
  // An answer is sent after the ends of all jobs.
  if (tail == page.lines.end() || page.ended || entry.kind == "answer") return std::move(page.lines);
  MJ_TRY(end, store_.logs(settings_.context, job_key, kAfterAllLines, 1, 0));
  if (!end.ended) {
    page.lines.erase(tail, page.lines.end());
    return std::move(page.lines);
  }
  // Lines may have been deleted between the first call and the end of the job.
  MJ_TRY(final_page, store_.logs(settings_.context, job_key, after_seq, kMaxAnswerLogLines, 0));
  return std::move(final_page.lines);
}

// Returns the next log lines of the first job that has new ones, or no value.
Result<std::optional<OutboundRequest>> MessageLoop::make_log_request(const OutboxEntry& entry) {
  MJ_TRY(ref, parse_origin(entry.mark));
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  for (std::size_t i = 0; i < std::min(keys.size(), origins.size()); ++i) {
    const std::string cursor = "log:" + std::to_string(i);
    MJ_TRY(final_lines, read_final_lines(entry, keys[i], number_of(entry.mark, cursor)));
    if (final_lines.empty()) continue;
    json lines = json::array();
    std::size_t bytes = 0;
    std::uint64_t last_seq = 0;
    for (const Log& line : final_lines) {
      json encoded_line = to_json(line);
      if (line.size > 0) encoded_line["size"] = line.size;
      if (line.begins_run) encoded_line["run"] = true;
      bytes += dump_json(encoded_line).size();  // A control byte takes six bytes in JSON.
      if (bytes > kMaxAnswerLogBytes && last_seq > 0) break;
      last_seq = line.seq;
      lines.push_back(std::move(encoded_line));
    }
    json body{{"of", to_json(ref)}, {"job", origins[i]}, {"lines", std::move(lines)}};
    MJ_TRY(request, seal_request(entry, EnvelopeKind::logs, body, std::string(field_of(entry.mark, "address")),
                                 static_cast<Id>(number_of(entry.mark, "from"))));
    request.on_success = {MailResult::Kind::retry, 0, "", "", {{cursor, std::to_string(last_seq)}}};
    // The answer is sent even if the peer rejects log lines.
    if (entry.kind == "answer") request.on_rejected = MailResult{MailResult::Kind::retry, 0, "", "", {{"stream", ""}}};
    return std::optional(std::move(request));
  }
  if (entry.kind == "logs")
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, {MailResult::Kind::retry, kLogIntervalMs, "", ""}));
  return std::optional<OutboundRequest>();
}

Result<void> MessageLoop::requeue_unsent(const OutboundRequest& outbound, std::uint64_t pause_ms) {
  return store_.complete_delivery(settings_.context, outbound.entry, {MailResult::Kind::retry, pause_ms, "", ""});
}

namespace {

// Schedules the next piece. Files are sent without a delay while the transfer makes progress: each file is requested
// once, or twice if it was damaged. If the receiver requests the same file repeatedly, the delay grows as for a host
// that does not answer, until the time of the message is over.
MailResult schedule_file_request(const OutboundRequest& outbound, const std::string& requested_file,
                                 bool makes_progress) {
  MailResult retry{MailResult::Kind::retry, 0, "", "", {{"want", requested_file}}};
  if (makes_progress) return retry;
  retry.retry_delay_ms = mail_retry_delay_ms(outbound.entry.mark);
  retry.reason = "the supervisor there repeatedly requests the same files: " + requested_file;
  return retry;
}

// Stores the remote id of a delivered message if the supervisor returned it.
MailResult add_remote_id(MailResult result, const json& reply) {
  constexpr std::size_t kMaxNameBytes = 64;
  const json id = result.kind == MailResult::Kind::delivered && reply.is_object() ? reply.value("id", json()) : json();
  if (id.is_string() && id.get_ref<const std::string&>().size() <= kMaxNameBytes)
    result.extra_fields.emplace_back("there", id.get<std::string>());
  return result;
}

// Returns the change of an outbox entry after a response. The receiver may request a file first.
MailResult plan_next_step(const OutboundRequest& outbound, const json& reply) {
  if (outbound.file_request) {
    RequestedFile requested_file = *outbound.file_request;
    const std::uint64_t previous_bytes = requested_file.received_bytes;
    const json received = reply.is_object() ? reply.value("have", json()) : json();
    requested_file.received_bytes = received.is_number_unsigned() ? received.get<std::uint64_t>() : outbound.file_bytes;
    const bool is_complete = requested_file.received_bytes >= outbound.file_bytes;
    const bool makes_progress =
        requested_file.received_bytes >= std::min(previous_bytes + kMaxPieceBytes, outbound.file_bytes);
    return schedule_file_request(outbound, is_complete ? "" : format_requested_file(requested_file), makes_progress);
  }
  const auto requested_file = parse_requested_file(reply);
  if (!requested_file || (outbound.entry.kind != "send" && outbound.entry.kind != "answer"))
    return add_remote_id(outbound.on_success, reply);
  const std::uint64_t request_count = number_of(outbound.entry.mark, "asked") + 1;
  MailResult retry = schedule_file_request(outbound, format_requested_file(*requested_file),
                                           request_count <= 2 * outbound.files + kMaxExtraFileRequests);
  retry.extra_fields.emplace_back("asked", std::to_string(request_count));
  return retry;
}

}  // namespace

Result<void> MessageLoop::complete(const OutboundRequest& outbound, const Result<std::string>& answer) {
  Result<json> reply = answer ? parse_rpc_answer(*answer) : Result<json>(tl::unexpected<Error>(answer.error()));
  if (reply)
    return log_and_continue(outbound.entry.entry, store_.complete_delivery(settings_.context, outbound.entry,
                                                                           plan_next_step(outbound, *reply)));
  const Error& error = reply.error();
  MJ_TRY(now_ms, store_.now_ms());
  const std::uint64_t start_ms =
      std::max({number_of(outbound.entry.mark, "came_ms"), number_of(outbound.entry.mark, "taken_ms"),
                number_of(outbound.entry.mark, "due_ms")});
  // The limit of a `send` entry is its field deliver_until.
  const bool is_expired = outbound.entry.kind != "send" && now_ms > start_ms + kMaxAnswerMs;
  const bool is_answer = outbound.entry.kind == "answer" || outbound.entry.kind == "logs";
  const bool is_rejected = is_permanent_refusal(outbound, error, answer.has_value());
  // The local file is damaged, so the answer is sent without the file.
  if (outbound.file_request && error.code == Code::invalid && is_answer) {
    const MailResult without_file{MailResult::Kind::retry, 0, "", "", {{"want", ""}, {"bare", "1"}}};
    return log_and_continue(outbound.entry.entry,
                            store_.complete_delivery(settings_.context, outbound.entry, without_file));
  }
  if (is_rejected || is_expired) {
    log(LogLevel::warn, "supervisor", "context {}: {}: {}", settings_.context, outbound.entry.entry,
        truncate_utf8(error.message, kMaxReasonBytes));
    const MailResult failed{MailResult::Kind::failed, 0, outbound.entry.kind == "send" ? "refused" : kLostDetail,
                            error.message};
    const bool is_skipped =
        is_rejected && outbound.on_rejected && !(outbound.file_request && error.code != Code::not_found);
    const MailResult& result = is_skipped ? *outbound.on_rejected : failed;
    return log_and_continue(outbound.entry.entry, store_.complete_delivery(settings_.context, outbound.entry, result));
  }
  const MailResult retry{MailResult::Kind::retry, mail_retry_delay_ms(outbound.entry.mark), "", error.message};
  return log_and_continue(outbound.entry.entry, store_.complete_delivery(settings_.context, outbound.entry, retry));
}

}  // namespace mycojobs
