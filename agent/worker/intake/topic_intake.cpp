#include "worker/intake/topic_intake.h"

#include "base/log.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "security/sender_check.h"
#include "store/acl_context.h"
#include "store/keys.h"
#include "text/plural.h"
#include "worker/worker_types.h"

namespace mycojobs {
namespace {

// Returns the jobs of a message, ready to be stored. Error: the reason why the message cannot be used.
Result<std::vector<Job>> read_jobs(RecordStore& store, const Fields& fields, Id context,
                                   const std::string& message_key) {
  auto decoded = decode<Message>(fields);
  Message& message = decoded.record;
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  if (redis_key(message) != message_key) return fail(Code::invalid, "id: the record names " + redis_key(message));
  if (message.message_type != MessageType::job) {
    return fail(Code::invalid, "message_type: the topic of a runner accepts only job messages, not " +
                                   std::string(to_string(message.message_type)));
  }
  if (message.job.empty()) return fail(Code::invalid, "job: the message carries no job");
  if (message.context_id == 0) message.context_id = context;
  MJ_CHECK(fill_and_check_sender(message, {message.caller_id, context}));
  MJ_TRY(acl, read_acl_context(store, context, EntryPoint::message));
  MJ_CHECK(check_permission(message.caller_id, Action::create, acl, {.name = "jobs"}));
  for (Job& job : message.job) {
    job.status = JobStatus::dispatched;
    if (const auto problems = validate(job); !problems.empty()) return fail(Code::invalid, "job: " + join(problems));
  }
  return std::move(message.job);
}

}  // namespace

bool TopicIntake::process(Store& store, const std::vector<Id>& contexts, const std::vector<std::string>& hints) {
  bool is_complete = true;
  bool is_found = false;
  for (const Id context : contexts) {
    const auto pending = store.topic_pending(context, find_topic_(context));
    if (!pending) return false;
    for (const std::string& key : *pending) is_complete = process_message(store, context, key, is_found) && is_complete;
  }
  for (const std::string& key : hints) {
    is_found = false;
    if (key.starts_with("message:")) {
      for (Id context : contexts) is_complete = process_message(store, context, key, is_found) && is_complete;
    }
    if (is_complete && !is_found)
      log(LogLevel::warn, "worker", "topic of this runner: no context here has a record \"{}\"", key.substr(0, 80));
  }
  return is_complete;
}

bool TopicIntake::process_message(Store& store, Id context, const std::string& message_key, bool& is_found) {
  auto fields = store.load(context, message_key);
  if (!fields) {
    if (fields.error().code == Code::not_found) return true;
    is_found = true;
    if (fields.error().code == Code::unavailable) return false;
    return reject_message(store, context, message_key, fields.error().message);
  }
  is_found = true;
  // Publishing a key must not send a message that was only created.
  if (field_of(*fields, "detail") == kCreatedDetail) {
    log(LogLevel::warn, "worker", "{}: was created but not sent: the hint is skipped", message_key);
    return true;
  }
  auto jobs = read_jobs(store, *fields, context, message_key);
  if (!jobs && jobs.error().code == Code::unavailable) return false;
  if (!jobs) return reject_message(store, context, message_key, jobs.error().message);
  AcceptMessage request{topic_key(find_topic_(context)), message_key, {}};
  for (Job& job : *jobs) request.jobs.push_back({std::move(job), queue_});
  auto accepted = store.accept_message(context, request);
  if (accepted) {
    if (!accepted->repeated)
      log(LogLevel::info, "worker", "{}: {} taken", message_key, count_with_noun(accepted->job_keys.size(), "job"));
    return true;
  }
  if (accepted.error().code == Code::unavailable) return false;
  return reject_message(store, context, message_key, accepted.error().message);
}

bool TopicIntake::reject_message(MessageStore& store, Id context, const std::string& message_key,
                                 const std::string& reason) {
  log(LogLevel::warn, "worker", "{} refused: {}", message_key, reason);
  auto closed = store.close_message(context, topic_key(find_topic_(context)), message_key, reason);
  return closed || closed.error().code != Code::unavailable;
}

}  // namespace mycojobs
