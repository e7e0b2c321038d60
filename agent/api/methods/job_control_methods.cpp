// The `job.` methods that cancel, approve, retry, restart or delete a job.
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"

namespace mycojobs::api {
namespace job_control_methods {

using nlohmann::json;

Result<json> cancel(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(job, service::cancel_job(call.request_context_of(), call.store(), key));
  return status_of(job, key);
}

template <bool approved>
Result<json> answer(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  const service::AnswerJob request{key, call.text("name"), approved, call.text("comment")};
  MJ_TRY(answered, service::answer_job(call.request_context_of(), call.store(), request));
  return status_of(answered.job, key);
}

Result<json> retry(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(job, service::retry_job(call.request_context_of(), call.store(), key));
  return status_of(job, key);
}

// Returns the state of the new job.
Result<json> restart(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  const auto idempotency_key = call.has("idempotency_key") ? std::optional(call.text("idempotency_key")) : std::nullopt;
  MJ_TRY(job, service::restart_job(call.request_context_of(), call.store(), key, idempotency_key));
  return status_of(job, redis_key(job));
}

Result<json> remove(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_CHECK(service::delete_job(call.request_context_of(), call.store(), key));
  return json{{"key", key}, {"deleted", true}};
}

}  // namespace job_control_methods

void add_job_controls(Services& s, const std::vector<Param>& one, std::vector<Method>& all) {
  using namespace job_control_methods;
  all.push_back(
      method(s, "job.cancel", "cancel a job in any state, permanently", one, "JobState: where it is", cancel));
  all.push_back(method(s, "job.retry", "run a job again that ended as error", one, "JobState: where it is", retry));
  std::vector<Param> restarts = one;
  std::erase_if(restarts, [](const Param& each) { return each.name == "caller_id"; });
  restarts.push_back(
      {"idempotency_key", "text", "the same key of the job's caller returns the new job of the first call"});
  all.push_back(method(s, "job.restart",
                       "queue a job that has ended once more, unchanged, as a new job of its original caller", restarts,
                       "JobState: where the new job is", restart));
  all.push_back(
      method(s, "job.delete", "delete a job that has ended, or was never queued", one, "Deleted: its key", remove));
  auto answers = one;
  answers.push_back({"name", "text", "of the approval, without approval:", true});
  answers.push_back({"comment", "text", "why; stands in the job's log, or in its error"});
  all.push_back(method(s, "job.approve", "approve a prerequisite of a job outside of a flow", answers,
                       "JobState: where it is", answer<true>));
  all.push_back(method(s, "job.reject", "reject a prerequisite: the job ends as error", answers,
                       "JobState: where it is", answer<false>));
}

}  // namespace mycojobs::api
