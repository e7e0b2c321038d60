// What every manifest has without saying so: the schemas and effects of the system. Pure; any thread.
// Source: seed 003, 3.4, 3.5 and 5.
//
//   sys/WorkflowContext@1         what the code may know of the world: time, entropy, height, who it is
//   sys/EffectReceiptEnvelope@1   a settled effect, for who asked for it
//   sys/EffectReceiptRejected@1   a receipt whose payload does not fit, for who asked for the effect
//   sys/EffectFailure@1           the payload of a receipt that is not ok: {detail, message}
//   sys/Any@1                     any value
// The payload of an envelope is the value itself, not a byte string around it: canonical as all of the event is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace mycojobs {

inline constexpr std::string_view kContextSchema = "sys/WorkflowContext@1";
inline constexpr std::string_view kReceiptSchema = "sys/EffectReceiptEnvelope@1";
inline constexpr std::string_view kRejectedSchema = "sys/EffectReceiptRejected@1";
inline constexpr std::string_view kFailureSchema = "sys/EffectFailure@1";
inline constexpr std::string_view kAnySchema = "sys/Any@1";

// An effect that the system carries out itself. Its schemas are `name` with Params and Receipt behind: for sys/timer@1
// sys/timer.params@1 and sys/timer.receipt@1.
//   sys/timer@1     {at_ms?, after_ms?}  the later of both; none: at once -> {fired_ms}
//   sys/flow@1      {flow, inputs}  a stored definition's name           -> {flow_id, result}
//   sys/signal@1    {flow_id, name, payload?}                            -> {delivered}
//   sys/approval@1  {title, approvers, text?, timeout_ms?}               -> {approved, by, comment?}
//   sys/cancel@1    {ref}  effects that the instance has asked for so    -> {cancelled}  timers and approvals
struct SystemEffect {
  std::string_view name, params, receipt;
};
inline constexpr std::string_view kTimerEffect = "sys/timer@1", kFlowEffect = "sys/flow@1";
inline constexpr std::string_view kSignalEffect = "sys/signal@1", kApprovalEffect = "sys/approval@1";
inline constexpr std::string_view kCancelEffect = "sys/cancel@1";
const std::vector<SystemEffect>& system_effects();
// {name: schema}, as a manifest would have them.
const nlohmann::json& system_schemas();

}  // namespace mycojobs
