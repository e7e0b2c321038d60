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
#include "messaging/transport/transport.h"
#include "model/codec.h"
#include "model/trace_context.h"
#include "net/json_rpc_client.h"
#include "security/rights.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "store/job_fields.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr const char *kMessagesIn = "msg_in", *kMarkPrefix = "mj:message:";
constexpr std::uint64_t kMailIdleMs = 1000, kMailRetireMs = 5000;
constexpr std::uint64_t kDeliverMs = std::uint64_t{kSignatureWindowS} * 1000;  // the signature expires then
constexpr std::uint64_t kAnswerMs = 7ULL * 24 * 3600 * 1000;                   // time for which an answer is retried
constexpr std::uint64_t kFirstAgainMs = 200, kMaxRetryPauseMs = 30000, kLogPauseMs = 500, kNotThereMs = 500;
constexpr std::size_t kAnswerBytes = 700U
                                     << 10;  // limit for the jobs of one answer; further jobs follow in the next answer
constexpr std::size_t kFlowBytes = 200U << 10;
constexpr std::size_t kLogLines = 500, kLogBytes = 256U << 10;
constexpr std::size_t kMaxTopics = 1000;
constexpr std::uint64_t kAskedMore = 8;  // requests for files without a pause, in addition to two for each file
constexpr const char* kLost = "lost";
constexpr std::uint64_t kAllPutBackMs = 10;  // pause if none of the due entries can be sent

std::uint64_t again_after(const Fields& mark) {
  return std::min(kMaxRetryPauseMs, kFirstAgainMs << std::min<std::uint64_t>(number_of(mark, "tries"), 10));
}

// Parses "<caller>:<id>", for example "12:101".
std::optional<std::pair<Id, Id>> caller_and_id(std::string_view text) {
  const std::size_t colon = text.find(':');
  std::uint64_t caller = 0, id = 0;
  if (colon == std::string_view::npos || !parse_u64(text.substr(0, colon), caller) ||
      !parse_u64(text.substr(colon + 1), id) || caller > UINT32_MAX || id > UINT32_MAX)
    return std::nullopt;
  return std::pair(static_cast<Id>(caller), static_cast<Id>(id));
}

// Returns whether the message itself causes the error. All other errors come from the store, this host or the settings
// of this coordinator, and can be fixed.
bool is_final(const Error& error) {
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
// because of a setting of this coordinator (no mycelium.url, an address that coordinator.networks does not allow). A
// restart or another leader has other settings, so the entry is retried until its time is over. A promised entry is
// also retried after `denied` and `too_large`, because clocks, keys, records and limits of the peer can be repaired.
// Log lines that are too large are left out instead: they do not delay the answer behind them.
bool is_refused_for_good(const OutboundRequest& parcel, const Error& error, bool is_from_peer) {
  if (!is_final(error)) return false;
  if (error.code == Code::denied) return is_from_peer && !is_promised(parcel.entry);
  const bool are_lines = parcel.refused && !parcel.piece_of;
  return error.code != Code::too_large || are_lines || !is_promised(parcel.entry);
}

std::vector<MessageJob> in_their_queues(const std::vector<Job>& jobs) {
  std::vector<MessageJob> out;
  out.reserve(jobs.size());
  for (const Job& job : jobs) out.push_back({job, queue_key(job.script_type)});
  return out;
}

// Moves the fields of nodes that describe their jobs to the jobs, and returns the remaining fields of the nodes.
json settle_nodes(const std::vector<FlowNode>& nodes, std::vector<Job>& jobs) {
  const auto add_to = [](auto& list, const auto& more) {
    for (const auto& each : more) {
      if (std::find(list.begin(), list.end(), each) == list.end()) list.push_back(each);
    }
  };
  json left = json::array();
  for (const FlowNode& node : nodes) {
    json rest{{"id", node.id}};
    if (!node.supervisor_url.empty()) rest["supervisor_url"] = node.supervisor_url;
    left.push_back(std::move(rest));
    const auto job = std::find_if(jobs.begin(), jobs.end(), [&](const Job& each) { return each.id == node.id; });
    if (job == jobs.end()) continue;  // The check of the definition will refuse this node.
    add_to(job->dependends, node.depends);
    add_to(job->prerequisites, node.prerequisites);
    if (job->name.empty()) job->name = node.name;
  }
  return left;
}

Result<void> check_jobs(const Message& message) {
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

Result<void> check_none_given(const Message& message) {
  const bool any =
      std::any_of(message.job.begin(), message.job.end(), [](const Job& job) { return !job.given.empty(); });
  if (any)
    return fail(Code::invalid, "given: is only for jobs on another host; in this context list the jobs in dependends");
  return {};
}

// Returns the name of the message that a mark of a received message belongs to.
Result<MessageName> origin_of(const Fields& mark) {
  const auto of = caller_and_id(field_of(mark, "origin"));
  if (!of) return fail(Code::invalid, "its state in the store does not name its sender");
  return MessageName{of->first, of->second, std::string(field_of(mark, "content"))};
}

// Returns the name under which the files of a received message are stored.
Result<InboundBundleId> bundle_of(const Fields& mark) {
  MJ_TRY(name, origin_of(mark));
  return message_bundle_id(name, std::string(field_of(mark, "signer")));
}

// Returns the name of a message that was sent.
MessageName name_of(const OutboxEntry& entry) {
  const auto of = caller_and_id(std::string_view(entry.message_key).substr(8));
  return {of ? of->first : 0, of ? of->second : 0, std::string(field_of(entry.mark, "content"))};
}

}  // namespace

MessageLoop::RecordCache& MessageLoop::record_cache() {
  const std::uint64_t now = clock_.boot_ms();
  if (now - known_.read_boot_ms > kKnownMs) {
    known_ = RecordCache();
    known_.read_boot_ms = now;
  }
  return known_;
}

Result<std::uint64_t> MessageLoop::now_ms() {
  RecordCache& all = record_cache();
  if (!all.now_ms) {
    MJ_TRY(read, store_.now_ms());
    all.now_ms = read;
  }
  return *all.now_ms;
}

Result<std::uint64_t> MessageLoop::now_s() {
  MJ_TRY(now, now_ms());
  return now / 1000;
}

Result<AclContext> MessageLoop::place(EntryPoint way) {
  RecordCache& all = record_cache();
  if (!all.place) {
    MJ_TRY(read, read_acl_context(store_, settings_.context, way));
    all.place = std::move(read);
  }
  AclContext out = *all.place;
  out.way = way;
  return out;
}

Result<Actor> MessageLoop::actor(Id id) {
  RecordCache& all = record_cache();
  if (const auto found = all.actors.find(id); found != all.actors.end()) return found->second;
  Actor out;
  out.id = id;
  auto record = store_.load(0, redis_key(out));
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  if (record) out = decode<Actor>(*record).record;
  all.actors.emplace(id, out);
  return out;
}

// Logs an error that concerns a single message, so that the other messages are processed. Returns only errors of the
// store.
Result<void> MessageLoop::log_and_continue(const std::string& what, Result<void> done) const {
  if (done || done.error().code == Code::unavailable) return done;
  log(LogLevel::error, "supervisor", "context {}: {}: {}", settings_.context, what, done.error().message);
  return {};
}

// Returns whether the entry can be sent now. An entry that cannot be sent is rescheduled; an expired entry is handled
// without a parcel.
Result<bool> MessageLoop::can_send(const OutboxEntry& entry, const SendDelay& room) {
  const bool stays = entry.kind == "expire" || (entry.kind == "cancel" && number_of(entry.mark, "flow") > 0);
  if (!room || stays) return true;
  const std::uint64_t until = entry.kind == "send" ? number_of(entry.mark, "deliver_until") : 0;
  if (until > 0) {
    MJ_TRY(now, now_ms());
    if (now >= until) return true;
  }
  const std::uint64_t pause_ms = room(entry);
  if (pause_ms == 0) return true;
  MJ_CHECK(store_.complete_delivery(settings_.context, entry, {MailResult::Kind::later, pause_ms, "", ""}));
  return false;
}

Result<MessageLoop::Batch> MessageLoop::round(std::uint32_t max_requests, const SendDelay& room) {
  known_ = RecordCache();
  known_.read_boot_ms = clock_.boot_ms();
  MJ_TRY(leaving, store_.outgoing(settings_.context));
  for (const std::string& key : leaving) MJ_CHECK(log_and_continue(key, route(key)));
  Batch out;
  MJ_TRY(due, store_.due_mail(settings_.context, std::max(1U, max_requests), kHoldMs, clock_went_back_));
  clock_went_back_ = due.now_ms < redis_ms_;
  redis_ms_ = due.now_ms;
  for (const std::string& key : due.arrived) MJ_CHECK(log_and_continue(key, process_inbound(key)));
  bool any_had_capacity = false;
  for (const OutboxEntry& entry : due.out) {
    MJ_TRY(goes, can_send(entry, room));
    if (!goes) continue;
    any_had_capacity = true;
    auto made = make_request(entry);
    if (!made) {
      MJ_CHECK(log_and_continue(entry.entry, fail_entry(entry, made.error())));
    } else if (*made) {
      out.parcels.push_back(std::move(**made));
    }
  }
  if (const std::uint64_t now = clock_.boot_ms(); now >= next_retire_ms_) {
    next_retire_ms_ = now + kMailRetireMs;
    if (settings_.retention_ms > 0) {
      MJ_TRY(gone, store_.retire_messages(settings_.context, settings_.retention_ms, 100));
      if (gone >= 100) next_retire_ms_ = now;
    }
  }
  const bool is_full = due.out.size() == max_requests;
  const bool more = clock_went_back_ || !leaving.empty() || !due.arrived.empty() || (is_full && any_had_capacity);
  out.next_ms = more ? 0 : due.next_ms == 0 ? kMailIdleMs : std::min(kMailIdleMs, due.next_ms);
  if (!more && is_full) out.next_ms = std::min(out.next_ms, kAllPutBackMs);
  return out;
}

// Handles an entry for which no request could be made. Errors of the store are returned; an invalid message ends.
Result<void> MessageLoop::fail_entry(const OutboxEntry& entry, const Error& error) {
  if (error.code == Code::unavailable) return tl::unexpected<Error>(error);
  const MailResult again{MailResult::Kind::later, again_after(entry.mark), "", error.message};
  const MailResult failed{MailResult::Kind::failed, 0, kLost, error.message};
  return store_.complete_delivery(settings_.context, entry, is_final(error) ? failed : again);
}

// ---- outgoing messages ----

Result<void> MessageLoop::route(const std::string& message_key) {
  auto hash = store_.load(settings_.context, message_key);
  if (!hash && hash.error().code == Code::not_found) return {};  // The message was deleted; its entry is dropped.
  Result<AcceptedMessage> done = tl::unexpected<Error>(Error{});
  std::string shown = message_key;
  if (!hash) {
    done = tl::unexpected<Error>(hash.error());
  } else {
    auto decoded = decode<Message>(*hash);
    shown = in_trace(message_key, decoded.record.traceparent);
    if (!decoded.ok()) {
      done = fail(Code::invalid, join(decoded.problems));
    } else {
      auto wanted = route_request(message_key, decoded.record);
      if (!wanted) {
        done = tl::unexpected<Error>(std::move(wanted).error());
      } else if (wanted->message_key.empty()) {
        return {};  // The message is for this context and has arrived.
      } else {
        done = store_.route_message(settings_.context, *wanted);
      }
    }
  }
  if (done || done.error().code == Code::unavailable)
    return done ? Result<void>() : tl::unexpected<Error>(std::move(done).error());
  log(LogLevel::warn, "supervisor", "context {}: {} is not sent: {}", settings_.context, shown,
      cut(done.error().message, kMaxReasonBytes));
  if (done.error().code == Code::denied)
    MJ_CHECK(
        store_.record_refusal(settings_.context, {0, 0, 0, "send", message_key + ": " + done.error().message, ""}));
  return store_.close_message(settings_.context, "msg_out_coordinator", message_key, done.error().message);
}

// Checks signature and permissions of the sender and finds the destination (step 2 of the specification). An empty key
// means that the message is for this context.
Result<RouteMessage> MessageLoop::route_request(const std::string& message_key, Message& message) {
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  MJ_TRY(sender, actor(message.caller_id));
  MJ_TRY(now, now_s());
  MJ_CHECK(check_message(message, sender, now));
  MJ_TRY(content, content_hash(message));
  const std::string signer = message.signer;
  const bool names_context = message.context_id > 0;
  MJ_CHECK(mycojobs::apply_sender(message, {message.caller_id, settings_.context}));
  MJ_TRY(here, place(EntryPoint::message));
  MJ_CHECK(check_permission(message.caller_id, Action::create, here, {.name = "messages"}));
  MJ_CHECK(check_jobs(message));
  if (message.target_address.empty() && message.target_context == settings_.context) {
    MJ_CHECK(check_none_given(message));
    const MessageState mark{content, {{"own", "1"}, {"signer", signer}}};
    MJ_TRY(arrival, store_.receive_message(settings_.context, message_key, mark, {}));
    if (arrival == Arrival::other)
      return fail(Code::conflict, "id: a message with this id was sent before with other content");
    return RouteMessage{};  // If the inbox is full, the message waits until there is space.
  }
  if (!names_context)
    return fail(Code::invalid,
                "context_id: is missing; the signed text must name it, since answers are sent to this context");
  if (!message.target_address.empty()) {
    if (!settings_.is_known)
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
  MJ_CHECK(check_files(store_, settings_.files, settings_.context, message));
  RouteMessage wanted{message_key, {content, {}}, kDeliverMs, std::uint64_t{message.timeout_result} * 1000, {}};
  wanted.mark.more = {
      {"address", message.target_address}, {"context", std::to_string(message.target_context)}, {"signer", signer}};
  if (message.timeout > 0) wanted.deliver_ms = std::uint64_t{message.timeout} * 1000;
  // A stored message counts as acknowledged.
  const std::uint64_t ack_ms = std::uint64_t{message.timeout_ack} * 1000;
  const bool ack_first = ack_ms > 0 && ack_ms < wanted.deliver_ms;
  if (ack_first) wanted.deliver_ms = ack_ms;
  wanted.mark.more.emplace_back("limit", ack_first ? "timeout_ack" : "timeout");
  // The job records of a flow are stored where the flow runs.
  if (message.flow) wanted.mark.more.emplace_back("whole", "1");
  if (!message.flow) wanted.jobs = in_their_queues(message.job);
  return wanted;
}

// ---- received messages ----

Result<void> MessageLoop::process_inbound(const std::string& message_key) {
  auto hash = store_.load(settings_.context, message_key);
  auto mark = store_.load(settings_.context, kMarkPrefix + message_key);
  for (const auto* each : {&hash, &mark}) {
    if (!*each && each->error().code == Code::unavailable) return tl::unexpected<Error>(each->error());
  }
  Result<void> done;
  if (!hash) {
    done = tl::unexpected<Error>(hash.error());
  } else if (auto decoded = decode<Message>(*hash); !decoded.ok()) {
    done = fail(Code::invalid, join(decoded.problems));
  } else if (!mark) {
    auto written = unsigned_message_error(message_key, decoded.record);
    done = written ? process_inbound(message_key, decoded.record, *written)
                   : Result<void>(tl::unexpected<Error>(std::move(written).error()));
  } else {
    done = process_inbound(message_key, decoded.record, *mark);
  }
  if (done || done.error().code == Code::unavailable) return done;
  if (mark && done.error().code == Code::unsupported) {
    MJ_TRY(waits, waits_for_settings(message_key, *mark, done.error()));
    if (waits) return {};
  }
  log(LogLevel::warn, "supervisor", "context {}: {} refused: {}", settings_.context,
      in_trace(message_key, hash ? decode<Message>(*hash).record.traceparent : ""),
      cut(done.error().message, kMaxReasonBytes));
  if (done.error().code == Code::denied)
    MJ_CHECK(
        store_.record_refusal(settings_.context, {0, 0, 0, "deliver", message_key + ": " + done.error().message, ""}));
  auto closed = store_.close_message(settings_.context, kMessagesIn, message_key, done.error().message);
  return closed || closed.error().code == Code::not_found ? Result<void>() : closed;
}

// A setting that this coordinator lacks does not end a message that was accepted: the message stays in mj:inbox, where
// due_mail() offers it again after kHoldMs, until its time is over.
Result<bool> MessageLoop::waits_for_settings(const std::string& message_key, const Fields& mark, const Error& why) {
  MJ_TRY(now, now_ms());
  if (now > number_of(mark, "came_ms") + kAnswerMs) return false;
  log(LogLevel::warn, "supervisor", "context {}: {} waits: {}", settings_.context, message_key, why.message);
  return true;
}

// Checks a message that a client pushed to msg_in itself.
Result<Fields> MessageLoop::unsigned_message_error(const std::string& message_key, const Message& message) {
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  MJ_TRY(sender, actor(message.caller_id));
  MJ_TRY(now, now_s());
  MJ_CHECK(check_message(message, sender, now));
  if (!message.target_address.empty())
    return fail(Code::denied, "target_address: it is signed for the coordinator at " +
                                  excerpt(message.target_address, 120) + ": push it to msg_out");
  if (message.target_context != settings_.context)
    return fail(Code::denied,
                "target_context: the message is signed for context " + std::to_string(message.target_context));
  MJ_TRY(content, content_hash(message));
  MessageState mark{content, {{"own", "1"}, {"signer", message.signer}}};
  MJ_TRY(arrival, store_.receive_message(settings_.context, message_key, mark, {}));
  if (arrival == Arrival::other)
    return fail(Code::conflict, "id: a message with this id was received before with other content");
  mark.more.emplace_back("content", content);
  return mark.more;
}

Result<void> MessageLoop::process_inbound(const std::string& message_key, Message& message, const Fields& mark) {
  const bool is_own = !field_of(mark, "own").empty();
  // Other clients can write to records, so the content must be the one that was checked when the message arrived.
  MJ_TRY(content, content_hash(message));
  if (redis_key(message) != message_key || content != field_of(mark, is_own ? "content" : "stored"))
    return fail(Code::conflict, "another client has changed its record since it was received");
  if (message.context_id == 0) message.context_id = settings_.context;
  // Permissions may have been revoked since the message arrived.
  MJ_TRY(here, place(is_own ? EntryPoint::message : EntryPoint::rpc));
  MJ_CHECK(check_permission(message.caller_id, Action::create, here, {.name = "messages"}));
  // A message from a remote host was normalized on entry. A local record stays as it was signed and is normalized here.
  if (is_own) MJ_CHECK(mycojobs::apply_sender(message, {message.caller_id, settings_.context}));
  MJ_CHECK(check_jobs(message));
  if (is_own || message.flow) MJ_CHECK(check_none_given(message));
  if (message.message_type != MessageType::job)
    return store_.close_message(settings_.context, kMessagesIn, message_key, "");
  AcceptMessage wanted{kMessagesIn, message_key, {}};
  if (message.flow) {
    MJ_TRY(flow, flow_of(message_key, message));
    wanted.flow = flow;
  } else {
    if (is_own) {
      wanted.jobs = in_their_queues(message.job);
    } else {
      MJ_TRY(jobs, jobs_of(message, wanted));
      wanted.jobs = std::move(jobs);
    }
    if (!message.topic.empty()) {
      MJ_TRY(queue, queue_of_topic(message.topic));
      for (MessageJob& each : wanted.jobs) each.queue = queue;
    }
  }
  MJ_TRY(held, hand_over(message, wanted, mark));  // The files are retained until the jobs exist.
  MJ_TRY(taken, store_.accept_message(settings_.context, wanted));
  if (held) settings_.files.store->drop(settings_.context, bundle_of(mark).value());
  if (!taken.repeated)
    log(LogLevel::info, "supervisor", "context {}: {}: {} taken", settings_.context,
        in_trace(message_key, message.traceparent),
        wanted.flow > 0 ? "flow " + std::to_string(wanted.flow) : count_with_noun(taken.job_keys.size(), "job"));
  return {};
}

// Assigns the received files to the jobs of the message. Returns null if there are none. Error `unsupported`: this host
// does not have them. Another coordinator may have received them, with a state_dir of its own.
Result<std::unique_ptr<ArtifactStore::RetainedFiles>> MessageLoop::hand_over(const Message& message,
                                                                             const AcceptMessage& wanted,
                                                                             const Fields& mark) {
  std::vector<ArtifactStore::ForJob> to;
  for (const MessageJob& each : wanted.jobs) {
    MJ_TRY(files, input_files(each.job));
    if (!files.empty()) to.push_back({redis_key(each.job), std::move(files)});
  }
  if (to.empty() || message.flow) return std::unique_ptr<ArtifactStore::RetainedFiles>();
  if (!settings_.files.store)
    return fail(Code::unsupported, "given: this coordinator has no state_dir for files; set state_dir");
  MJ_TRY(parcel, bundle_of(mark));
  auto held = settings_.files.store->retain_files(store_, settings_.context, parcel, to);
  if (!held && held.error().code == Code::not_found)
    return fail(Code::unsupported,
                "given: " + held.error().message +
                    " on this host: give this coordinator the state_dir of the coordinator that received the message");
  return held;
}

// Returns the jobs of the message with local ids. The ids of the sender are only used for references between these
// jobs.
Result<std::vector<MessageJob>> MessageLoop::jobs_of(Message& message, AcceptMessage& wanted) {
  const auto count = static_cast<std::uint32_t>(message.job.size());
  MJ_TRY(first, store_.reserve_jobs(settings_.context, message.caller_id, count));
  std::map<Id, Id> ours;
  for (std::uint32_t i = 0; i < count; ++i) ours[message.job[i].id] = first + i;
  if (ours.size() != count) return fail(Code::invalid, "job: an id is listed twice");
  for (std::uint32_t i = 0; i < count; ++i) {
    Job& job = message.job[i];
    const std::string where = "job[" + std::to_string(i) + "].";
    wanted.origins.push_back(job_key(job.caller_id, job.id));
    for (Id& dependency : job.dependends) {
      const auto found = ours.find(dependency);
      if (found == ours.end())
        return fail(Code::invalid,
                    where + "dependends: " + std::to_string(dependency) + " is not a job of the message");
      dependency = found->second;
    }
    job.id = first + i;
    job.caller_id = message.caller_id;
    job.context_id = settings_.context;
    job.idempotency_key.clear();  // The key is valid in the context of the sender only.
    if (job.traceparent.empty()) job.traceparent = message.traceparent;
    job.unknown = {{"of_message", redis_key(message)}};
  }
  return in_their_queues(message.job);
}

// Returns the queue of the runner with this topic. All runner records are searched only if the cached record has
// another topic.
Result<std::string> MessageLoop::queue_of_topic(const std::string& topic) {
  const auto has_topic = [&](const std::string& key) -> Result<bool> {
    constexpr std::string_view kAsked[] = {"topic"};
    auto fields = store_.load_fields(settings_.context, key, kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    if (!fields) return false;
    const std::string_view own = field_of(*fields, "topic");
    return (own.empty() ? "runner" + key.substr(7) : std::string(own)) == topic;
  };
  const auto queue = [](const std::string& key) { return runner_queue(key.substr(7)); };
  if (const auto kept = topics_.find(topic); kept != topics_.end()) {
    MJ_TRY(still, has_topic(kept->second));
    if (still) return queue(kept->second);
    topics_.erase(kept);
  }
  MJ_TRY(keys, store_.keys(settings_.context, "runner:", 10000));
  for (const std::string& key : keys) {
    MJ_TRY(found, has_topic(key));
    if (!found) continue;
    if (topics_.size() >= kMaxTopics) topics_.clear();
    topics_[topic] = key;
    return queue(key);
  }
  return fail(Code::not_found,
              "topic: no runner of context " + std::to_string(settings_.context) + " has the topic " + excerpt(topic));
}

// Creates and starts the flow of a message, from its definition or from its jobs. Repeated calls create one flow.
Result<Id> MessageLoop::flow_of(const std::string& message_key, const Message& message) {
  json definition;
  if (!message.flow->definition.empty()) {
    MJ_TRY(parsed, parse_json(message.flow->definition));
    definition = std::move(parsed);
  } else {
    std::vector<Job> jobs = message.job;
    const json nodes = settle_nodes(message.flow->nodes, jobs);
    MJ_TRY(made, definition_of_jobs(message.flow->name, message.flow->env_vars, jobs, nodes));
    definition = std::move(made);
  }
  ParsedPlan read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "flow: " + join(read.problems));
  if (auto fits = mycojobs::check_jobs(*read.plan, settings_.limits); !fits) return fail(fits.error(), "flow");
  const NewFlow wanted{settings_.context, message.caller_id, message.flow->env_vars, "message " + message_key, ""};
  MJ_TRY(flow, create_flow(flows_, *read.plan, wanted));
  ProgressRequest start;
  start.context = settings_.context;
  start.flow = flow.id;
  start.start = StartRun{message_key, message.caller_id};
  MJ_CHECK(progress(flows_, runs_, start));
  return flow.id;
}

// ---- requests to remote hosts ----

Result<OutboundRequest> MessageLoop::seal_request(const OutboxEntry& entry, EnvelopeKind kind, const json& body,
                                                  std::string address, Id context) {
  MJ_TRY(now, now_s());
  MJ_TRY(envelope, seal({kind, context, now, {}}, body, *settings_.key));
  OutboundRequest out{
      entry, std::move(address), rpc_request("message.deliver", {{"envelope", std::move(envelope)}}), {}};
  MJ_CHECK(check_request_size(out.request.size()));
  return out;
}

namespace {

// Returns the end of a message that was not delivered in time.
MailResult undelivered(const Fields& mark) {
  const std::string_view limit = field_of(mark, "limit");
  if (limit == "cancelled") return {MailResult::Kind::failed, 0, "cancelled", "cancelled before it was delivered"};
  const std::string last(field_of(mark, "why"));
  return {MailResult::Kind::failed, 0, "timeout",
          (limit == "timeout_ack" ? "timeout_ack: it was not acknowledged in time"
                                  : "timeout: it was not delivered in time") +
              (last.empty() ? "" : ": " + last)};
}

}  // namespace

Result<std::optional<OutboundRequest>> MessageLoop::make_request(const OutboxEntry& entry) {
  const auto wrap = [](Result<OutboundRequest> made) -> Result<std::optional<OutboundRequest>> {
    if (!made) return tl::unexpected<Error>(std::move(made).error());
    return std::optional(std::move(*made));
  };
  const bool is_unavailable_now = field_of(entry.mark, "state") == "away";
  const bool is_answered = field_of(entry.mark, "answer") != "due" && field_of(entry.mark, "answer") != "wanted";
  const MailResult over{MailResult::Kind::over, 0, "", ""};
  if (entry.kind == "send" && is_unavailable_now) {
    MJ_TRY(now, now_ms());
    const std::uint64_t until = number_of(entry.mark, "deliver_until");
    if (until == 0 || now < until) return wrap(make_send_request(entry));
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, undelivered(entry.mark)));
  } else if (entry.kind == "expire" && is_unavailable_now) {
    const MailResult late{MailResult::Kind::failed, 0, "timeout", "timeout_result: no answer was received in time"};
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, late));
  } else if (entry.kind == "cancel" && number_of(entry.mark, "flow") > 0) {
    MJ_CHECK(cancel_flow(entry));
  } else if (entry.kind == "cancel" &&
             (!field_of(entry.mark, "jobs").empty() || !field_of(entry.mark, "whole").empty())) {
    const bool is_there = !is_unavailable_now || number_of(entry.mark, "delivered_ms") > 0;
    if (is_there) return wrap(make_cancel_request(entry));
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, {MailResult::Kind::later, kNotThereMs, "", ""}));
  } else if (entry.kind == "logs" && !is_answered) {
    return make_log_request(entry);
  } else if (entry.kind == "answer" && !is_answered) {
    if (!field_of(entry.mark, "stream").empty()) {
      auto lines = make_log_request(entry);
      if (!lines) return skip_log_lines(entry, lines.error());
      if (*lines) return lines;
    }
    return wrap(make_answer_request(entry));
  } else {
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, over));
  }
  return std::optional<OutboundRequest>();
}

// Leaves out log lines after an error, and returns the answer without them: log lines never prevent an answer.
Result<std::optional<OutboundRequest>> MessageLoop::skip_log_lines(const OutboxEntry& entry, const Error& why) {
  if (why.code == Code::unavailable) return tl::unexpected<Error>(why);
  log(LogLevel::warn, "supervisor", "context {}: {}: the log lines of its jobs are dropped: {}", settings_.context,
      entry.entry, cut(why.message, kMaxReasonBytes));
  const MailResult bare{MailResult::Kind::later, 0, "", "", {{"stream", ""}}};
  MJ_CHECK(store_.complete_delivery(settings_.context, entry, bare));
  return std::optional<OutboundRequest>();
}

Result<OutboundRequest> MessageLoop::make_send_request(const OutboxEntry& entry) {
  MJ_TRY(hash, store_.load(settings_.context, entry.message_key));
  Message message = decode<Message>(hash).record;
  message.unknown.clear();  // Unknown fields are not signed, and the receiver does not use them.
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  MJ_TRY(content, content_hash(message));
  if (content != field_of(entry.mark, "content"))
    return fail(Code::conflict, "another client has changed its record since it was signed");
  MJ_TRY(files, files_of(message));
  if (const auto want = requested_file(field_of(entry.mark, "want"))) {
    for (const JobFileList& each : files) {
      for (const FileContent& file : each.files) {
        if (each.job_key == want->job_key && file.sha256 == want->sha256)
          return make_file_request(entry, name_of(entry), each.job_key, file, *want, message.target_context);
      }
    }  // Otherwise the request does not belong to this message, which is sent without files.
  }
  json body{{"message", to_json(message)}};
  MJ_TRY(out, seal_request(entry, EnvelopeKind::message, body, std::string(field_of(entry.mark, "address")),
                           message.target_context));
  out.done = {MailResult::Kind::delivered, 0, "", ""};
  for (const JobFileList& each : files) out.files += each.files.size();
  return out;
}

// Returns the next piece of a requested file, from the requested offset on.
Result<OutboundRequest> MessageLoop::make_file_request(const OutboxEntry& entry, const MessageName& name,
                                                       const std::string& job_key, const FileContent& file,
                                                       const RequestedFile& want, Id context) {
  if (!settings_.files.store) return fail(Code::not_found, "this coordinator has no state_dir for files");
  MJ_TRY(bytes, settings_.files.store->read(store_, settings_.context, job_key, file, want.have, kPieceBytes));
  json body = piece_json(name, file, want.have, bytes);
  const bool is_answer = entry.kind == "answer";
  if (!is_answer) body["by"] = field_of(entry.mark, "signer");
  MJ_TRY(out, seal_request(entry, EnvelopeKind::file, body, std::string(field_of(entry.mark, "address")), context));
  out.piece_of = want;
  out.file_bytes = file.bytes;
  // The receiver does not wait for the file any more. The message or answer that names it is sent again.
  out.refused = MailResult{MailResult::Kind::later, 0, "", "", {{"want", ""}}};
  return out;
}

// Returns no value if no file was requested, or the requested file is not available.
Result<std::optional<OutboundRequest>> MessageLoop::make_answer_file_request(const OutboxEntry& entry,
                                                                             const MessageName& name) {
  const auto want = requested_file(field_of(entry.mark, "want"));
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  const auto found = want ? std::find(origins.begin(), origins.end(), want->job_key) : origins.end();
  const auto index = static_cast<std::size_t>(found - origins.begin());
  if (index >= std::min(keys.size(), origins.size())) return std::optional<OutboundRequest>();
  constexpr std::string_view kAsked[] = {"artifacts"};
  auto record = store_.load_fields(settings_.context, keys[index], kAsked);
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  for (const FileContent& file : file_contents(record ? std::string(field_of(*record, "artifacts")) : "")) {
    if (file.sha256 != want->sha256) continue;
    auto made =
        make_file_request(entry, name, keys[index], file, *want, static_cast<Id>(number_of(entry.mark, "from")));
    if (!made && made.error().code == Code::not_found) break;
    if (!made) return tl::unexpected<Error>(std::move(made).error());
    return std::optional(std::move(*made));
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
  auto done = progress(flows_, runs_, request);
  if (!done && done.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(done).error());
  // An error means that the flow has ended already.
  return store_.complete_delivery(settings_.context, entry, {MailResult::Kind::over, 0, "", ""});
}

Result<OutboundRequest> MessageLoop::make_cancel_request(const OutboxEntry& entry) {
  json jobs = json::array();
  for (const std::string& key : split_words(field_of(entry.mark, "jobs"))) {
    constexpr std::string_view kAsked[] = {"status"};
    auto job = store_.load_fields(settings_.context, key, kAsked);
    if (!job && job.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(job).error());
    if (!job || field_of(*job, "status") == "error" || !field_of(entry.mark, "carried").empty()) jobs.push_back(key);
  }
  json body{{"of", to_json(name_of(entry))}, {"by", field_of(entry.mark, "signer")}, {"jobs", std::move(jobs)}};
  if (!field_of(entry.mark, "whole").empty()) body["flow"] = true;
  return seal_request(entry, EnvelopeKind::cancel, body, std::string(field_of(entry.mark, "address")),
                      static_cast<Id>(number_of(entry.mark, "context")));
}

namespace {

// Returns the record of a flow for an answer; the nodes of a large flow are left out.
json answer_of(Flow flow) {
  flow.unknown.clear();
  flow.definition.clear();
  flow.env_vars.clear();
  flow.notify.clear();
  json out = to_json(flow);
  if (dump_json(out).size() <= kFlowBytes) return out;
  flow.nodes.clear();
  return to_json(flow);
}

// Returns a completed job for an answer. ran_as: context and key of the job at this host.
json answered(const std::string& origin, const std::string& ran_as, const Job& job) {
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
  sent.artifacts = job.artifacts;
  sent.artifacts_dropped = job.artifacts_dropped;
  sent.attempt = job.attempt;
  sent.started_ms = job.started_ms;
  json out = to_json(sent);
  out["key"] = origin;
  out["ran_as"] = ran_as;
  return out;
}

}  // namespace

// Adds the artifacts of a job to the answer if this host has them. Returns why they exceed the limit, or an empty text.
Result<std::string> MessageLoop::add_files(const OutboxEntry& entry, const std::string& job_key, const Job& job,
                                           json& answered) {
  const auto files = file_contents(job.artifacts);
  if (files.empty()) return std::string();
  const std::uint64_t bytes = bytes_of(files);
  if (bytes > settings_.files.max_bytes)
    return "its artifacts have " + std::to_string(bytes) + " bytes; " + kCarriedLimit + " there is " +
           std::to_string(settings_.files.max_bytes);
  bool here = false;
  if (settings_.files.store && field_of(entry.mark, "bare").empty()) {
    MJ_TRY(found, settings_.files.store->has(store_, settings_.context, job_key, files));
    here = found;
  }
  answered["files"] = here;
  return std::string();
}

// Returns the jobs from index `from` on that fit into one answer. Their files together are at most as large as the
// files of one job may be, so that the receiver has space for them.
Result<json> MessageLoop::answered_jobs(const OutboxEntry& entry, std::size_t from, std::size_t& next) {
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  json jobs = json::array();
  std::size_t bytes = 0;
  std::uint64_t room = 0;
  for (next = from; next < std::min(keys.size(), origins.size()); ++next) {
    auto record = store_.load(settings_.context, keys[next]);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    Job job = record ? decode<Job>(*record).record : Job();
    if (!record || (job.status != JobStatus::finished && job.status != JobStatus::error)) {
      job = Job();
      job.status = JobStatus::error;
      job.detail = kLost;
      job.error = "its record there was deleted";
    }
    const std::string ran_as = std::to_string(settings_.context) + ' ' + keys[next];
    json job_sent = answered(origins[next], ran_as, job);
    MJ_TRY(with_files, add_files(entry, keys[next], job, job_sent));
    std::size_t size = dump_json(job_sent).size();
    std::string why = std::move(with_files);
    if (why.empty() && size > kAnswerBytes)
      why = "its result and error have " + std::to_string(size) + " bytes; an answer carries " +
            std::to_string(kAnswerBytes);
    if (!why.empty()) {
      Job large;
      large.status = JobStatus::error;
      large.detail = "too_large";
      large.error = "the job ended as " + std::string(to_string(job.status)) + ", and " + why + ". It is " +
                    keys[next] + " in context " + std::to_string(settings_.context) + " there";
      job_sent = answered(origins[next], ran_as, large);
      size = dump_json(job_sent).size();
    }
    const auto files = files_of_job(job_sent);
    const std::uint64_t takes = files ? accounted_bytes(files->files) : 0;
    if (!jobs.empty() && (bytes + size > kAnswerBytes || room + takes > settings_.files.max_bytes)) break;
    bytes += size;
    room += takes;
    jobs.push_back(std::move(job_sent));
  }
  return jobs;
}

Result<OutboundRequest> MessageLoop::make_answer_request(const OutboxEntry& entry) {
  MJ_TRY(name, origin_of(entry.mark));
  auto hash = store_.load(settings_.context, entry.message_key);
  if (!hash && hash.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(hash).error());
  Message message = hash ? decode<Message>(*hash).record : Message();
  if (!hash) {
    message.status = MessageStatus::error;
    message.error = "its record there was deleted";
  }
  MJ_TRY(asked, make_answer_file_request(entry, name));
  if (asked) return std::move(*asked);
  std::size_t next = 0;
  MJ_TRY(jobs, answered_jobs(entry, number_of(entry.mark, "told"), next));
  const bool is_last = next >= split_words(field_of(entry.mark, "jobs")).size();
  json body{{"of", to_json(name)},
            {"status", to_string(message.status)},
            {"error", cut(to_utf8(message.error), kMaxReasonBytes)},
            {"jobs", std::move(jobs)},
            {"last", is_last}};
  if (const std::uint64_t flow = number_of(entry.mark, "flow"); flow > 0) {
    auto record = store_.load(settings_.context, "flow:" + std::to_string(flow));
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    if (record) body["flow"] = answer_of(decode<Flow>(*record).record);
  }
  const std::string address(field_of(entry.mark, "address"));
  const auto from = static_cast<Id>(number_of(entry.mark, "from"));
  auto made = seal_request(entry, EnvelopeKind::answer, body, address, from);
  if (!made && is_final(made.error())) {
    const std::string why =
        "the job ended as " + std::string(to_string(message.status)) + " there, but its answer cannot be sent: ";
    const json brief{{"of", to_json(name)},
                     {"status", to_string(MessageStatus::error)},
                     {"error", why + cut(made.error().message, kMaxReasonBytes)},
                     {"jobs", json::array()},
                     {"last", true}};
    return seal_request(entry, EnvelopeKind::answer, brief, address, from);
  }
  if (!made) return made;
  OutboundRequest out = std::move(*made);
  for (const json& each : body["jobs"]) {
    if (each.value("files", false)) out.files += each["artifacts"].size();
  }
  if (!is_last) out.done = {MailResult::Kind::later, 0, "", "", {{"told", std::to_string(next)}, {"asked", ""}}};
  return out;
}

// Returns the next log lines of the first job that has new ones, or no value.
Result<std::optional<OutboundRequest>> MessageLoop::make_log_request(const OutboxEntry& entry) {
  MJ_TRY(name, origin_of(entry.mark));
  const auto keys = split_words(field_of(entry.mark, "jobs")), origins = split_words(field_of(entry.mark, "origins"));
  for (std::size_t i = 0; i < std::min(keys.size(), origins.size()); ++i) {
    const std::string cursor = "log:" + std::to_string(i);
    MJ_TRY(page, store_.logs(settings_.context, keys[i], number_of(entry.mark, cursor), kLogLines, 0));
    if (page.lines.empty()) continue;
    json lines = json::array();
    std::size_t bytes = 0;
    std::uint64_t last = 0;
    for (const Log& line : page.lines) {
      json sent = to_json(line);
      bytes += dump_json(sent).size();  // A control byte takes six bytes in JSON.
      if (bytes > kLogBytes && last > 0) break;
      last = line.seq;
      lines.push_back(std::move(sent));
    }
    json body{{"of", to_json(name)}, {"job", origins[i]}, {"lines", std::move(lines)}};
    MJ_TRY(out, seal_request(entry, EnvelopeKind::logs, body, std::string(field_of(entry.mark, "address")),
                             static_cast<Id>(number_of(entry.mark, "from"))));
    out.done = {MailResult::Kind::later, 0, "", "", {{cursor, std::to_string(last)}}};
    // The end is sent even if the peer refuses log lines.
    if (entry.kind == "answer") out.refused = MailResult{MailResult::Kind::later, 0, "", "", {{"stream", ""}}};
    return std::optional(std::move(out));
  }
  if (entry.kind == "logs")
    MJ_CHECK(store_.complete_delivery(settings_.context, entry, {MailResult::Kind::later, kLogPauseMs, "", ""}));
  return std::optional<OutboundRequest>();
}

Result<void> MessageLoop::requeue_unsent(const OutboundRequest& parcel, std::uint64_t pause_ms) {
  return store_.complete_delivery(settings_.context, parcel.entry, {MailResult::Kind::later, pause_ms, "", ""});
}

namespace {

// Schedules the next piece. Files are sent without a pause while the transfer makes progress: each file is requested
// once, or twice if it arrived damaged. A receiver that requests the same file repeatedly gets it after growing pauses,
// as a host that does not answer does, until the time of the message is over.
MailResult more_files(const OutboundRequest& parcel, const std::string& want, bool gets_on) {
  MailResult later{MailResult::Kind::later, 0, "", "", {{"want", want}}};
  if (gets_on) return later;
  later.pause_ms = again_after(parcel.entry.mark);
  later.why = "the supervisor there repeatedly requests the same files: " + want;
  return later;
}

// Stores the remote id of a delivered message if the supervisor returned it.
MailResult known_as(MailResult done, const json& reply) {
  constexpr std::size_t kMaxNameBytes = 64;
  const json id = done.what == MailResult::Kind::delivered && reply.is_object() ? reply.value("id", json()) : json();
  if (id.is_string() && id.get_ref<const std::string&>().size() <= kMaxNameBytes)
    done.more.emplace_back("there", id.get<std::string>());
  return done;
}

// Returns the change of an outbox entry after a response. The receiver may request a file first.
MailResult after(const OutboundRequest& parcel, const json& reply) {
  if (parcel.piece_of) {
    RequestedFile want = *parcel.piece_of;
    const std::uint64_t had = want.have;
    const json have = reply.is_object() ? reply.value("have", json()) : json();
    want.have = have.is_number_unsigned() ? have.get<std::uint64_t>() : parcel.file_bytes;
    const bool is_whole = want.have >= parcel.file_bytes;
    const bool gets_on = want.have >= std::min(had + kPieceBytes, parcel.file_bytes);
    return more_files(parcel, is_whole ? "" : text_of(want), gets_on);
  }
  const auto want = parse_requested_file(reply);
  if (!want || (parcel.entry.kind != "send" && parcel.entry.kind != "answer")) return known_as(parcel.done, reply);
  const std::uint64_t asked = number_of(parcel.entry.mark, "asked") + 1;
  MailResult later = more_files(parcel, text_of(*want), asked <= 2 * parcel.files + kAskedMore);
  later.more.emplace_back("asked", std::to_string(asked));
  return later;
}

}  // namespace

Result<void> MessageLoop::complete(const OutboundRequest& parcel, const Result<std::string>& answer) {
  Result<json> reply = answer ? read_rpc_answer(*answer) : Result<json>(tl::unexpected<Error>(answer.error()));
  if (reply)
    return log_and_continue(parcel.entry.entry,
                            store_.complete_delivery(settings_.context, parcel.entry, after(parcel, *reply)));
  const Error& error = reply.error();
  MJ_TRY(now_ms, store_.now_ms());
  const std::uint64_t since =
      std::max({number_of(parcel.entry.mark, "came_ms"), number_of(parcel.entry.mark, "taken_ms"),
                number_of(parcel.entry.mark, "due_ms")});
  const bool late =
      parcel.entry.kind != "send" && now_ms > since + kAnswerMs;  // For `send` entries deliver_until has the limit.
  const bool is_answer = parcel.entry.kind == "answer" || parcel.entry.kind == "logs";
  const bool is_no = is_refused_for_good(parcel, error, answer.has_value());
  // The local file is damaged. The answer is sent with the name of the file only.
  if (parcel.piece_of && error.code == Code::invalid && is_answer) {
    const MailResult bare{MailResult::Kind::later, 0, "", "", {{"want", ""}, {"bare", "1"}}};
    return log_and_continue(parcel.entry.entry, store_.complete_delivery(settings_.context, parcel.entry, bare));
  }
  if (is_no || late) {
    log(LogLevel::warn, "supervisor", "context {}: {}: {}", settings_.context, parcel.entry.entry,
        cut(error.message, kMaxReasonBytes));
    const MailResult failed{MailResult::Kind::failed, 0, parcel.entry.kind == "send" ? "refused" : kLost,
                            error.message};
    const bool is_passed_over = is_no && parcel.refused && !(parcel.piece_of && error.code != Code::not_found);
    const MailResult& then = is_passed_over ? *parcel.refused : failed;
    return log_and_continue(parcel.entry.entry, store_.complete_delivery(settings_.context, parcel.entry, then));
  }
  const MailResult later{MailResult::Kind::later, again_after(parcel.entry.mark), "", error.message};
  return log_and_continue(parcel.entry.entry, store_.complete_delivery(settings_.context, parcel.entry, later));
}

}  // namespace mycojobs
