#include "store/prerequisite_store.h"

#include "model/codec.h"
#include "model/prerequisite.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

// Returns true for a condition that the flow of a job checks itself.
bool is_gate(std::string_view condition) {
  return condition.starts_with("approval:") || condition.starts_with("signal:") || condition.starts_with("flow:");
}

}  // namespace

Result<std::vector<AwaitedPrerequisites>> PrerequisiteStore::due_prerequisites(Id context, std::uint32_t max,
                                                                               std::uint32_t redelivery_delay_ms,
                                                                               CheckerRole role) {
  Arguments arguments;
  arguments.add(std::uint64_t{max}).add(std::uint64_t{redelivery_delay_ms});
  MJ_TRY(reply, connection_.run(context, scripts::prerequisites_due,
                                arguments.add(role == CheckerRole::coordinator ? "coordinator" : "agent")));
  std::vector<AwaitedPrerequisites> out;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const Reply entry = reply.at(i);
    // A list that cannot be parsed is returned as one condition, which the checker then rejects.
    const std::string text(entry.at(1).text());
    const Job job = decode<Job>({{"prerequisites", text}}).record;
    const bool is_valid = !job.prerequisites.empty();
    AwaitedPrerequisites awaited{std::string(entry.at(0).text()),
                                 is_valid ? job.prerequisites : std::vector<std::string>{text}, entry.at(2).number()};
    const bool is_flow_job = entry.at(3).text() == "1";
    const Reply approvals = entry.at(4);
    std::erase_if(awaited.conditions, [&](const std::string& condition) {
      if (is_flow_job && is_gate(condition)) return true;  // checked by the flow before it dispatched the job
      for (std::size_t n = 0; n < approvals.size(); ++n) {
        if (condition == "approval:" + std::string(approvals.at(n).text())) return true;
      }
      return false;
    });
    awaited.coordinator_checks = role == CheckerRole::agent && entry.at(5).text() == "1";
    out.push_back(std::move(awaited));
  }
  return out;
}

Result<void> PrerequisiteStore::complete_prerequisites(Id context, const std::string& job_key,
                                                       const std::string& failure_reason) {
  MJ_CHECK(connection_.run(context, scripts::prerequisites_settled, Arguments{job_key, failure_reason}));
  return {};
}

Result<bool> PrerequisiteStore::answer_prerequisite(Id context, const std::string& job_key,
                                                    const PrerequisiteAnswer& answer) {
  // The name becomes part of a field name, and of a text that the script searches in the record.
  if (!is_approval_name(answer.name)) return fail(Code::invalid, "name: is not a valid name of an approval");
  const std::string comment_suffix = answer.comment.empty() ? "" : ": " + answer.comment;
  const std::string line = "approval:" + answer.name + " was given by " + std::to_string(answer.actor) + comment_suffix;
  const std::string reason =
      answer.approved ? ""
                      : "approval:" + answer.name + " was rejected by " + std::to_string(answer.actor) + comment_suffix;
  MJ_TRY(reply, connection_.run(context, scripts::prerequisite_answer, Arguments{job_key, answer.name, line, reason}));
  const std::string status(reply.text());
  if (status == "ok") return true;
  if (status == "again" || (status == "met" && answer.approved)) return false;
  if (status == "missing") return fail(Code::not_found, job_key + " does not exist");
  if (status == "over") return fail(Code::conflict, job_key + " has ended");
  if (status == "met") return fail(Code::conflict, job_key + " waits no longer: its prerequisites were met");
  if (status == "early")
    return fail(Code::conflict,
                job_key + " waits in its queue, and no agent has checked it yet: answer after the check");
  if (status == "unasked")
    return fail(Code::not_found, job_key + " does not wait for approval:" + answer.name + "; `mycojobs job explain " +
                                     job_key.substr(4) + "` shows the reason");
  return fail(Code::conflict, job_key + " is a job of flow " + status + ": `mycojobs flow approve " + status + " " +
                                  answer.name + "`, or `mycojobs flow reject " + status + " " + answer.name + "`");
}

}  // namespace mycojobs
