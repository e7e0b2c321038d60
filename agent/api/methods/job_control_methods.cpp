// The `job.` methods that cancel, approve, retry, restart or delete a job.
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"

namespace mycojobs::api {
namespace job_control_methods {

using nlohmann::json;

Result<json> cancel(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(job, service::cancel_job(call.request_context(), call.store(), key));
  return job_state_to_json(job, key);
}

// Approves or rejects an approval prerequisite.
template <bool approved>
Result<json> decide_approval(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  const service::AnswerJob request{key, call.text("name"), approved, call.text("comment")};
  MJ_TRY(view, service::answer_job(call.request_context(), call.store(), request));
  return job_state_to_json(view.job, key);
}

Result<json> retry(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(job, service::retry_job(call.request_context(), call.store(), key));
  return job_state_to_json(job, key);
}

// Returns the state of the new job.
Result<json> restart(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(job, service::restart_job(call.request_context(), call.store(), key, call.optional_text("idempotency_key")));
  return job_state_to_json(job, redis_key(job));
}

Result<json> remove(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_CHECK(service::delete_job(call.request_context(), call.store(), key));
  return json{{"key", key}, {"deleted", true}};
}

}  // namespace job_control_methods

void add_job_control_methods(Services& services, std::vector<Method>& methods) {
  using namespace job_control_methods;
  bind_methods(services,
               {{"job.cancel", cancel},
                {"job.retry", retry},
                {"job.restart", restart},
                {"job.delete", remove},
                {"job.approve", decide_approval<true>},
                {"job.reject", decide_approval<false>}},
               methods);
}

}  // namespace mycojobs::api
