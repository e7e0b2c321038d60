#include "service/message_service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "messaging/message_checks.h"
#include "messaging/message_codec.h"
#include "messaging/message_receiver.h"
#include "model/codec.h"
#include "model/submitted_files.h"
#include "security/sender_check.h"
#include "service/job_service.h"
#include "service/record_service.h"
#include "text/json.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxMessageKeys = 100000;

// A message goes only to runners of this context. Otherwise its hint could be published on any channel of the server.
Result<void> check_topic_owner(const RequestContext& caller, Store& store, const std::string& topic) {
  if (topic.empty()) return {};
  MJ_TRY(infos, store.runners(caller.context));
  for (const RunnerInfo& info : infos) {
    const std::string default_topic = "runner" + std::to_string(info.runner.id);
    if (topic == (info.runner.topic.empty() ? default_topic : info.runner.topic)) return {};
  }
  return fail(Code::not_found, "topic: no runner of context " + std::to_string(caller.context) +
                                   " has this topic; runner.list shows all runners");
}

// Assigns a free id to each job without an id.
Result<void> assign_job_ids(Store& store, Id context, Id owner, std::vector<Job>& jobs) {
  const auto missing_ids = std::count_if(jobs.begin(), jobs.end(), [](const Job& job) { return job.id == 0; });
  if (missing_ids == 0) return {};
  MJ_TRY(first_id, store.reserve_jobs(context, owner, static_cast<std::uint32_t>(missing_ids)));
  Id next_id = first_id;
  for (Job& job : jobs) {
    if (job.id == 0) job.id = next_id++;
  }
  return {};
}

// A message for another context leaves through msg_out after it was signed. Its topic belongs to the other context.
bool is_remote_message(const Message& message, Id context) {
  return !message.target_address.empty() || (message.target_context != 0 && message.target_context != context);
}
}  // namespace

Result<void> set_target_key(RecordStore& store, Id context, Message& message) {
  message.target_key.clear();
  if (message.target_address.empty()) return {};
  MJ_TRY(key, find_supervisor_key(store, context, message.target_address, ""));
  message.target_key = std::move(key);
  return {};
}

Result<Message> send_message(const RequestContext& caller, Store& store, std::optional<Id> owner_id, Message message) {
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "messages"}));
  MJ_TRY(owner, resolve_owner(caller, owner_id));
  const bool is_remote = is_remote_message(message, caller.context);
  message.status = MessageStatus::dispatched;
  if (is_remote && message.timeout > kMaxMessageTimeoutS)
    return fail(Code::invalid, "timeout: at most " + std::to_string(kMaxMessageTimeoutS) + " s");
  if (message.job.size() > kMaxMessageJobs)
    return fail(Code::too_large, "job: a message carries at most " + std::to_string(kMaxMessageJobs));
  if (is_remote || message.target_context != 0) MJ_CHECK(assign_job_ids(store, caller.context, owner, message.job));
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    if (has_submitted_files(message.job[i])) {
      return fail(Code::invalid, "job[" + std::to_string(i) +
                                     "]: a message cannot carry stdin and files: submit the "
                                     "job to its context, or give it an artifact of an earlier job (inputs)");
    }
    auto result = check_new_job(caller, message.job[i], owner);
    // A remote host applies its own ceiling.
    if (result && !is_remote) result = check_policy(caller, store, message.job[i]);
    if (!result) return fail(result.error(), "job[" + std::to_string(i) + "]");
  }
  // This also limits each script in the definition.
  if (message.flow && message.flow->definition.size() > caller.max_script_bytes)
    return fail(Code::too_large, "flow.definition: is " + std::to_string(message.flow->definition.size()) +
                                     " bytes, and job.max_script_bytes allows " +
                                     std::to_string(caller.max_script_bytes));
  MJ_CHECK(fill_and_check_sender(message, {owner, caller.context}));
  // If no runner has that address, the supervisor reports the error.
  auto target = set_target_key(store, caller.context, message);
  if (!target && target.error().code != Code::denied) return tl::unexpected<Error>(std::move(target).error());
  if (!is_remote) MJ_CHECK(check_topic_owner(caller, store, message.topic));
  const std::string owner_text = std::to_string(owner);
  const bool is_sent_now = !is_remote && !message.topic.empty();
  NewRecord record{"message:" + owner_text + ':', "message:" + owner_text, message.id, encode(message)};
  // The detail marks the message as not sent until message.send. Other clients can write entries of msg_out and hints
  // on a topic; these do not send the message.
  if (!is_sent_now) record.fields.emplace_back("detail", kCreatedDetail);
  MJ_TRY(stored, create_record(store, caller.context, std::move(record)));
  Message created = decode<Message>(stored).record;
  if (is_sent_now) MJ_CHECK(store.send_to_topic(caller.context, message.topic, redis_key(created), {}));
  return created;
}

Result<Message> post_message(const RequestContext& caller, Store& store, Id owner, Id id, const Message& signature) {
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "messages"}));
  if (owner != caller.actor && !caller.is_operator)
    return fail(Code::denied, "caller_id: only the owner of a message can send it");
  MJ_TRY(message, read_message(caller, store, owner, id));
  const std::string key = redis_key(message);
  Fields fields;
  if (!signature.signature.empty()) {
    fields = {{"signature", signature.signature}, {"signer", signature.signer}, {"algorithm", signature.algorithm}};
    if (signature.created_at > 0) fields.emplace_back("created_at", std::to_string(signature.created_at));
  } else if (message.signature.empty()) {
    return fail(Code::invalid, "signature: " + key +
                                   " is not signed, so its receiver would reject it: run mycojobs message sign " +
                                   key.substr(8));
  }
  MJ_CHECK(store.post_message(caller.context, key, fields));
  return read_message(caller, store, owner, id);
}

Result<Message> read_message(const RequestContext& caller, Store& store, Id owner, Id id) {
  const std::string name = std::to_string(owner) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(caller, store, Action::read, {.name = "message " + name, .creator = owner}));
  MJ_TRY(fields, store.load(caller.context, "message:" + name));
  return decode<Message>(fields).record;
}

Result<std::vector<Message>> list_messages(const RequestContext& caller, Store& store, std::uint64_t limit) {
  MJ_TRY(visible_owner, find_listable_actor(caller, store));
  const std::string prefix = visible_owner ? "message:" + std::to_string(*visible_owner) + ':' : "message:";
  MJ_TRY(keys, store.keys(caller.context, prefix, kMaxMessageKeys));
  constexpr std::string_view kListedFields[] = {"id",    "caller_id",  "context_id", "message_type", "status",
                                                "error", "created_at", "updated_at", "topic"};
  std::vector<Message> messages;
  MJ_TRY(records, store.load_batch(caller.context, keys, kListedFields));
  for (const Fields& fields : records) {
    if (!fields.empty()) messages.push_back(decode<Message>(fields).record);
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(b.created_at, b.caller_id, b.id) < std::tie(a.created_at, a.caller_id, a.id);
  });
  if (messages.size() > limit) messages.resize(limit);
  return messages;
}

// MessageLoop and scripts/messages.lua write errors with this prefix.
std::string_view to_display_status(const Message& message) {
  constexpr std::string_view kCancelled = "cancelled";
  return message.status == MessageStatus::error && message.error.starts_with(kCancelled) ? kCancelled
                                                                                         : to_string(message.status);
}

std::optional<Flow> get_flow_result(const Message& message) {
  const auto parsed = parse_json(field_of(message.unknown, kFlowResultField));
  if (!parsed || !parsed->is_object()) return std::nullopt;
  return decode_json<Flow>(*parsed).record;
}

nlohmann::json message_to_json(const Message& message) {
  nlohmann::json out = to_json(message);
  if (const auto flow = get_flow_result(message)) out[std::string(kFlowResultField)] = to_json(*flow);
  return out;
}

Result<Message> cancel_message(const RequestContext& caller, Store& store, Id owner, Id id) {
  const std::string name = std::to_string(owner) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(caller, store, Action::steer, {.name = "message " + name, .creator = owner}));
  MJ_CHECK(store.cancel_message(caller.context, "message:" + name));
  return read_message(caller, store, owner, id);
}

Result<void> delete_message(const RequestContext& caller, Store& store, Id owner, Id id) {
  const std::string name = std::to_string(owner) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(caller, store, Action::administer, {.name = "message " + name, .creator = owner}));
  return store.delete_record(caller.context, "message:" + name);
}

}  // namespace mycojobs::service
