#include "security/sender_check.h"

namespace mycojobs {
namespace {

// Sets an absent id (0) to the id of the sender. Returns error denied for the id of another actor or context.
Result<void> fill_and_check_id(const char* field, Id& id, Id sender_id) {
  if (id == 0) id = sender_id;
  if (id == sender_id) return {};
  return fail(Code::denied, std::string(field) + ": " + std::to_string(id) + " differs from the sender, " +
                                std::to_string(sender_id) + ": leave " + field + " out");
}

Result<void> require_absent(const char* field, bool is_absent, const char* writer) {
  if (is_absent) return {};
  return fail(Code::invalid, std::string(field) + ": is written by " + writer + " alone: leave it out");
}

Result<void> fill_and_check_flow(Flow& flow, const Sender& sender) {
  MJ_CHECK(fill_and_check_id("caller_id", flow.caller_id, sender.caller));
  MJ_CHECK(fill_and_check_id("context_id", flow.context_id, sender.context));
  return require_absent("parent", flow.parent.empty(), "the flow that starts a child");
}

}  // namespace

Result<void> fill_and_check_sender(Job& job, const Sender& sender) {
  MJ_CHECK(fill_and_check_id("caller_id", job.caller_id, sender.caller));
  MJ_CHECK(fill_and_check_id("context_id", job.context_id, sender.context));
  MJ_CHECK(require_absent("flow_id", job.flow_id == 0, "the flow that takes the job"));
  MJ_CHECK(require_absent("runner_id", job.runner_id == 0, "the agent that runs the job"));
  const bool is_unstarted = job.status == JobStatus::dispatched || job.status == JobStatus::waiting_for_prerequisites;
  MJ_CHECK(require_absent("status", is_unstarted, "who runs the job"));
  MJ_CHECK(require_absent("result", job.result.empty(), "who runs the job"));
  MJ_CHECK(require_absent("claim_id", job.claim_id.empty() && job.epoch == 0 && job.lease_until_ms == 0, "the store"));
  return require_absent(
      "receipt", job.receipt.empty() && job.usage.empty() && job.artifacts.empty() && job.artifacts_dropped.empty(),
      "who runs the job");
}

Result<void> fill_and_check_sender(Message& message, const Sender& sender) {
  MJ_CHECK(fill_and_check_id("caller_id", message.caller_id, sender.caller));
  MJ_CHECK(fill_and_check_id("context_id", message.context_id, sender.context));
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    if (auto result = fill_and_check_sender(message.job[i], sender); !result)
      return fail(result.error(), "job[" + std::to_string(i) + "]");
  }
  if (!message.flow) return {};
  if (auto result = fill_and_check_flow(*message.flow, sender); !result) return fail(result.error(), "flow");
  return {};
}

}  // namespace mycojobs
