// The schemas and effects of the system, which every manifest has without a declaration. Pure and thread-safe.
// Source: seed 003, 3.4, 3.5 and 5.
//
//   sys/WorkflowContext@1         data for the code: time, entropy, height, identity of the instance
//   sys/EffectReceiptEnvelope@1   a settled effect, for the instance that requested it
//   sys/EffectReceiptRejected@1   a receipt whose payload does not fit, for the instance that requested the effect
//   sys/EffectFailure@1           the payload of a receipt that is not ok: {detail, message}
//   sys/Any@1                     any value
// The payload of an envelope is the value itself, not a byte string around it: canonical, like the rest of the event.
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

// An effect that the system performs itself. Its schemas have the name with .params or .receipt before the version: for
// sys/timer@1, sys/timer.params@1 and sys/timer.receipt@1.
//   sys/timer@1     {at_ms?, after_ms?}: the later of both; without both, now     -> {fired_ms}
//   sys/flow@1      {flow, inputs}; flow: the name of a stored definition         -> {flow_id, result}
//   sys/signal@1    {flow_id, name, payload?}                                     -> {delivered}
//   sys/approval@1  {title, approvers, text?, timeout_ms?}                        -> {approved, by, comment?}
//   sys/cancel@1    {ref}: cancels effects that the instance requested with it    -> {cancelled}: timers and approvals
struct SystemEffect {
  std::string_view name, params, receipt;
};
inline constexpr std::string_view kTimerEffect = "sys/timer@1", kFlowEffect = "sys/flow@1";
inline constexpr std::string_view kSignalEffect = "sys/signal@1", kApprovalEffect = "sys/approval@1";
inline constexpr std::string_view kCancelEffect = "sys/cancel@1";
const std::vector<SystemEffect>& system_effects();
// Returns {name: schema}, as in a manifest.
const nlohmann::json& system_schemas();

}  // namespace mycojobs
