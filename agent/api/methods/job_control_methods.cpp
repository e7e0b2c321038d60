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
  const auto idempotency_key =
      call.has_param("idempotency_key") ? std::optional(call.text("idempotency_key")) : std::nullopt;
  MJ_TRY(job, service::restart_job(call.request_context(), call.store(), key, idempotency_key));
  return job_state_to_json(job, redis_key(job));
}

Result<json> remove(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_CHECK(service::delete_job(call.request_context(), call.store(), key));
  return json{{"key", key}, {"deleted", true}};
}

}  // namespace job_control_methods

void add_job_control_methods(Services& services, const std::vector<Param>& job_params, std::vector<Method>& methods) {
  using namespace job_control_methods;
  methods.push_back(make_method(services, "job.cancel", "cancel a job in any state, permanently", job_params,
                                "JobState: where it is", cancel));
  methods.push_back(make_method(services, "job.retry", "run a job again that ended as error", job_params,
                                "JobState: where it is", retry));
  std::vector<Param> restart_params = job_params;
  std::erase_if(restart_params, [](const Param& param) { return param.name == "caller_id"; });
  restart_params.push_back(
      {"idempotency_key", "text", "the same key of the job's caller returns the new job of the first call"});
  methods.push_back(make_method(services, "job.restart",
                                "queue an ended job again, unchanged, as a new job of its original caller",
                                restart_params, "JobState: where the new job is", restart));
  methods.push_back(make_method(services, "job.delete", "delete a job that has ended, or was never queued", job_params,
                                "Deleted: its key", remove));
  auto decision_params = job_params;
  decision_params.push_back({"name", "text", "name of the approval, without the prefix approval:", true});
  decision_params.push_back({"comment", "text", "the reason, stored in the log of the job or in its error"});
  methods.push_back(make_method(services, "job.approve", "approve a prerequisite of a job outside of a flow",
                                decision_params, "JobState: where it is", decide_approval<true>));
  methods.push_back(make_method(services, "job.reject", "reject a prerequisite: the job ends as error", decision_params,
                                "JobState: where it is", decide_approval<false>));
}

}  // namespace mycojobs::api
