#include "service/message_service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "messaging/message_codec.h"
#include "messaging/message_receiver.h"
#include "model/codec.h"
#include "security/sender_check.h"
#include "service/job_service.h"
#include "service/record_service.h"
#include "store/record_changes.h"
#include "text/json.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxMessagesListed = 1000, kMaxMessageKeys = 100000;

// A message goes only to runners of this context. Otherwise its hint could be published on any channel of the server.
Result<void> check_is_runners(const RequestContext& by, Store& store, const std::string& topic) {
  if (topic.empty()) return {};
  MJ_TRY(infos, store.runners(by.context));
  for (const RunnerInfo& info : infos) {
    const std::string own = "runner" + std::to_string(info.runner.id);
    if (topic == (info.runner.topic.empty() ? own : info.runner.topic)) return {};
  }
  return fail(Code::not_found, "topic: no runner of context " + std::to_string(by.context) +
                                   " has this topic; runner.list shows all runners");
}

// Assigns a free id to each job without an id.
Result<void> number_jobs(Store& store, Id context, Id caller, std::vector<Job>& jobs) {
  const auto without = std::count_if(jobs.begin(), jobs.end(), [](const Job& job) { return job.id == 0; });
  if (without == 0) return {};
  MJ_TRY(first, store.reserve_jobs(context, caller, static_cast<std::uint32_t>(without)));
  Id next = first;
  for (Job& job : jobs) {
    if (job.id == 0) job.id = next++;
  }
  return {};
}

// A message for another context leaves through msg_out after it was signed. Its topic belongs to the other context.
bool is_for_elsewhere(const Message& message, Id context) {
  return !message.target_address.empty() || (message.target_context != 0 && message.target_context != context);
}
}  // namespace

Result<void> name_target(RecordStore& store, Id context, Message& message) {
  message.target_key.clear();
  if (message.target_address.empty()) return {};
  MJ_TRY(key, supervisor_key(store, context, message.target_address, ""));
  message.target_key = std::move(key);
  return {};
}

Result<Message> send_message(const RequestContext& by, Store& store, std::optional<Id> named, Message message) {
  MJ_CHECK(check_permission(by, store, Action::create, {.name = "messages"}));
  MJ_TRY(owner, resource_owner(by, named));
  const bool leaves = is_for_elsewhere(message, by.context);
  message.status = MessageStatus::dispatched;
  if (leaves && message.timeout > kMaxDeliverS)
    return fail(Code::invalid, "timeout: at most " + std::to_string(kMaxDeliverS) + " s");
  if (message.job.size() > kMaxMessageJobs)
    return fail(Code::too_large, "job: a message carries at most " + std::to_string(kMaxMessageJobs));
  if (leaves || message.target_context != 0) MJ_CHECK(number_jobs(store, by.context, owner, message.job));
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    auto checked = check_new_job(by, message.job[i], owner);
    // A remote host applies its own ceiling.
    if (checked && !leaves) checked = check_policy(by, store, message.job[i]);
    if (!checked) return fail(checked.error(), "job[" + std::to_string(i) + "]");
  }
  // This also limits each script in the definition.
  if (message.flow && message.flow->definition.size() > by.max_script_bytes)
    return fail(Code::too_large, "flow.definition: is " + std::to_string(message.flow->definition.size()) +
                                     " bytes, and job.max_script_bytes allows " + std::to_string(by.max_script_bytes));
  MJ_CHECK(apply_sender(message, {owner, by.context}));
  // If no runner has that address, the supervisor reports the error.
  auto named_target = name_target(store, by.context, message);
  if (!named_target && named_target.error().code != Code::denied)
    return tl::unexpected<Error>(std::move(named_target).error());
  if (!leaves) MJ_CHECK(check_is_runners(by, store, message.topic));
  const std::string caller = std::to_string(owner);
  const bool is_sent_now = !leaves && !message.topic.empty();
  NewRecord record{"message:" + caller + ':', "message:" + caller, message.id, encode(message)};
  // The detail marks the message as not sent until message.send. Other clients can write entries of msg_out and hints
  // on a topic; these do not send the message.
  if (!is_sent_now) record.fields.emplace_back("detail", kCreatedDetail);
  MJ_TRY(stored, create_record(store, by.context, std::move(record)));
  Message made = decode<Message>(stored).record;
  if (is_sent_now) MJ_CHECK(store.topic_send(by.context, message.topic, redis_key(made), {}));
  return made;
}

Result<Message> post_message(const RequestContext& by, Store& store, Id maker, Id id, const Message& signature) {
  MJ_CHECK(check_permission(by, store, Action::create, {.name = "messages"}));
  if (maker != by.actor && !by.is_operator)
    return fail(Code::denied, "caller_id: only the owner of a message can send it");
  MJ_TRY(message, read_message(by, store, maker, id));
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
  MJ_CHECK(post_message_record(store, by.context, key, fields));
  return read_message(by, store, maker, id);
}

Result<Message> read_message(const RequestContext& by, Store& store, Id maker, Id id) {
  const std::string name = std::to_string(maker) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(by, store, Action::read, {.name = "message " + name, .maker = maker}));
  MJ_TRY(fields, store.load(by.context, "message:" + name));
  return decode<Message>(fields).record;
}

Result<std::vector<Message>> list_messages(const RequestContext& by, Store& store, std::uint64_t limit) {
  MJ_TRY(only, listable_actor(by, store));
  const std::string prefix = only ? "message:" + std::to_string(*only) + ':' : "message:";
  MJ_TRY(keys, store.keys(by.context, prefix, kMaxMessageKeys));
  constexpr std::string_view kListed[] = {"id",    "caller_id",  "context_id", "message_type", "status",
                                          "error", "created_at", "updated_at", "topic"};
  std::vector<Message> found;
  MJ_TRY(records, store.load_some(by.context, keys, kListed));
  for (const Fields& fields : records) {
    if (!fields.empty()) found.push_back(decode<Message>(fields).record);
  }
  std::sort(found.begin(), found.end(), [](const Message& a, const Message& b) {
    return std::tie(b.created_at, b.caller_id, b.id) < std::tie(a.created_at, a.caller_id, a.id);
  });
  const std::size_t max = std::min<std::uint64_t>(limit, kMaxMessagesListed);
  if (found.size() > max) found.resize(max);
  return found;
}

// MessageLoop and scripts/messages.lua write errors with this prefix.
std::string_view message_word(const Message& message) {
  constexpr std::string_view kCancelled = "cancelled";
  return message.status == MessageStatus::error && message.error.starts_with(kCancelled) ? kCancelled
                                                                                         : to_string(message.status);
}

std::optional<Flow> flow_result(const Message& message) {
  const auto parsed = parse_json(field_of(message.unknown, kFlowResultField));
  if (!parsed || !parsed->is_object()) return std::nullopt;
  return decode_json<Flow>(*parsed).record;
}

nlohmann::json message_json(const Message& message) {
  nlohmann::json out = to_json(message);
  if (const auto flow = flow_result(message)) out[std::string(kFlowResultField)] = to_json(*flow);
  return out;
}

Result<Message> cancel_message(const RequestContext& by, Store& store, Id maker, Id id) {
  const std::string name = std::to_string(maker) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(by, store, Action::steer, {.name = "message " + name, .maker = maker}));
  MJ_CHECK(store.cancel_message(by.context, "message:" + name));
  return read_message(by, store, maker, id);
}

Result<void> delete_message(const RequestContext& by, Store& store, Id maker, Id id) {
  const std::string name = std::to_string(maker) + ':' + std::to_string(id);
  MJ_CHECK(check_permission(by, store, Action::administer, {.name = "message " + name, .maker = maker}));
  return store.delete_record(by.context, "message:" + name);
}

}  // namespace mycojobs::service
