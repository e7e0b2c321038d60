#include "security/sender_check.h"

namespace mycojobs {
namespace {

// Replaces 0 by the sender's id. Error denied: another id.
Result<void> take_over(const char* field, Id& id, Id senders) {
  if (id == 0) id = senders;
  if (id == senders) return {};
  return fail(Code::denied, std::string(field) + ": " + std::to_string(id) + " differs from the sender, " +
                                std::to_string(senders) + ": leave " + field + " out");
}

Result<void> absent(const char* field, bool is_absent, const char* whose) {
  if (is_absent) return {};
  return fail(Code::invalid, std::string(field) + ": is written by " + whose + " alone: leave it out");
}

Result<void> settle(Flow& flow, const Sender& sender) {
  MJ_CHECK(take_over("caller_id", flow.caller_id, sender.caller));
  MJ_CHECK(take_over("context_id", flow.context_id, sender.context));
  return absent("parent", flow.parent.empty(), "the flow that starts a child");
}

}  // namespace

Result<void> apply_sender(Job& job, const Sender& sender) {
  MJ_CHECK(take_over("caller_id", job.caller_id, sender.caller));
  MJ_CHECK(take_over("context_id", job.context_id, sender.context));
  MJ_CHECK(absent("flow_id", job.flow_id == 0, "the flow that takes the job"));
  MJ_CHECK(absent("runner_id", job.runner_id == 0, "the agent that runs the job"));
  const bool fresh = job.status == JobStatus::dispatched || job.status == JobStatus::waiting_for_prerequisites;
  MJ_CHECK(absent("status", fresh, "who runs the job"));
  MJ_CHECK(absent("result", job.result.empty(), "who runs the job"));
  MJ_CHECK(absent("claim_id", job.claim_id.empty() && job.epoch == 0 && job.lease_until_ms == 0, "the store"));
  return absent("receipt",
                job.receipt.empty() && job.usage.empty() && job.artifacts.empty() && job.artifacts_dropped.empty(),
                "who runs the job");
}

Result<void> apply_sender(Message& message, const Sender& sender) {
  MJ_CHECK(take_over("caller_id", message.caller_id, sender.caller));
  MJ_CHECK(take_over("context_id", message.context_id, sender.context));
  for (std::size_t i = 0; i < message.job.size(); ++i) {
    if (auto settled = apply_sender(message.job[i], sender); !settled)
      return fail(settled.error(), "job[" + std::to_string(i) + "]");
  }
  if (!message.flow) return {};
  if (auto settled = settle(*message.flow, sender); !settled) return fail(settled.error(), "flow");
  return {};
}

}  // namespace mycojobs
