#include "worker/intake/topic_intake.h"

#include "base/log.h"
#include "model/codec.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "store/keys.h"
#include "text/plural.h"
#include "worker/worker_types.h"

namespace mycojobs {
namespace {

// Returns the jobs of a message, ready to be stored. Error: the reason why the message cannot be used.
Result<std::vector<Job>> jobs_of(RecordStore& store, const Fields& hash, Id context, const std::string& message_key) {
  auto decoded = decode<Message>(hash);
  Message& message = decoded.record;
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  if (message.message_type != MessageType::job) {
    return fail(Code::invalid, "message_type: the topic of a runner accepts only job messages, not " +
                                   std::string(to_string(message.message_type)));
  }
  if (message.job.empty()) return fail(Code::invalid, "job: the message carries no job");
  if (message.context_id == 0) message.context_id = context;
  MJ_CHECK(apply_sender(message, {message.caller_id, context}));
  MJ_TRY(place, read_acl_context(store, context, EntryPoint::message));
  MJ_CHECK(check_permission(message.caller_id, Action::create, place, {.name = "jobs"}));
  for (Job& job : message.job) {
    job.status = JobStatus::dispatched;
    if (const auto problems = validate(job); !problems.empty()) return fail(Code::invalid, "job: " + join(problems));
  }
  return std::move(message.job);
}

}  // namespace

bool TopicIntake::take(const TopicStore& store, const std::vector<Id>& contexts,
                       const std::vector<std::string>& hints) {
  bool ok = true;
  bool found = false;
  for (const Id context : contexts) {
    const auto waiting = store.as<MessageStore>().topic_pending(context, topic_(context));
    if (!waiting) return false;
    for (const std::string& key : *waiting) ok = take_one(store, context, key, found) && ok;
  }
  for (const std::string& key : hints) {
    found = false;
    if (key.starts_with("message:")) {
      for (Id context : contexts) ok = take_one(store, context, key, found) && ok;
    }
    if (ok && !found)
      log(LogLevel::warn, "worker", "topic of this runner: no context here has a record \"{}\"", key.substr(0, 80));
  }
  return ok;
}

bool TopicIntake::take_one(const TopicStore& store, Id context, const std::string& message_key, bool& found) {
  auto hash = store.as<RecordStore>().load(context, message_key);
  if (!hash) {
    if (hash.error().code == Code::not_found) return true;
    found = true;
    if (hash.error().code == Code::unavailable) return false;
    return refuse(store, context, message_key, hash.error().message);
  }
  found = true;
  if (field_of(*hash, "detail") == kCreatedDetail) {  // Publishing a key must not send a message that was only created.
    log(LogLevel::warn, "worker", "{}: was created but not sent: the hint is skipped", message_key);
    return true;
  }
  auto jobs = jobs_of(store, *hash, context, message_key);
  if (!jobs && jobs.error().code == Code::unavailable) return false;
  if (!jobs) {
    return refuse(store, context, message_key, jobs.error().message);
  }
  AcceptMessage wanted{topic_key(topic_(context)), message_key, {}};
  for (Job& job : *jobs) wanted.jobs.push_back({std::move(job), queue_});
  auto taken = store.as<MessageStore>().accept_message(context, wanted);
  if (taken) {
    if (!taken->repeated)
      log(LogLevel::info, "worker", "{}: {} taken", message_key, count_with_noun(taken->job_keys.size(), "job"));
    return true;
  }
  if (taken.error().code == Code::unavailable) return false;
  return refuse(store, context, message_key, taken.error().message);
}

bool TopicIntake::refuse(MessageStore& store, Id context, const std::string& message_key, const std::string& why) {
  log(LogLevel::warn, "worker", "{} refused: {}", message_key, why);
  auto refused = store.close_message(context, topic_key(topic_(context)), message_key, why);
  return refused || refused.error().code != Code::unavailable;
}

}  // namespace mycojobs
