// job. methods that move a job on, or end it.
#include <nlohmann/json.hpp>

#include "api/job_parts.h"
#include "store/prerequisite_answer.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

Result<json> cancel(Call& call) {
  MJ_TRY(view, find_job(call, Action::steer));
  MJ_CHECK(call.store().cancel(call.context(), view.key));
  MJ_TRY(after, load_job(call.store(), call.context(), view.key));
  return status_of(after.job, view.key);
}

template <bool approved>
Result<json> answer(Call& call) {
  MJ_TRY(view, find_job(call, Action::answer));
  const PrerequisiteAnswer said{call.text("name"), approved, call.actor(), call.text("comment")};
  MJ_CHECK(answer_prerequisite(call.store(), call.context(), view.key, said));
  MJ_TRY(after, load_job(call.store(), call.context(), view.key));
  return status_of(after.job, view.key);
}

Result<json> retry(Call& call) {
  MJ_TRY(view, find_job(call, Action::steer));
  MJ_CHECK(call.store().requeue(call.context(), view.key));
  MJ_TRY(after, load_job(call.store(), call.context(), view.key));
  return status_of(after.job, view.key);
}

}  // namespace

void add_job_controls(Services& s, const std::vector<Param>& one, std::vector<Method>& all) {
  all.push_back(method(s, "job.cancel", "end a job wherever it is, for ever", one, "JobState: where it is", cancel));
  all.push_back(method(s, "job.retry", "run a job again that ended as error", one, "JobState: where it is", retry));
  auto answers = one;
  answers.push_back({"name", "text", "of the approval, without approval:", true});
  answers.push_back({"comment", "text", "why; stands in the job's log, or in its error"});
  all.push_back(method(s, "job.approve", "approve what a job outside of a flow waits for", answers,
                       "JobState: where it is", answer<true>));
  all.push_back(
      method(s, "job.reject", "reject it: the job ends as error", answers, "JobState: where it is", answer<false>));
}

}  // namespace mycojobs::api
