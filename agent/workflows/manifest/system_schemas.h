// The schemas and effects of the system, which every manifest has without a declaration. Pure and thread-safe.
// Specification: seed 003, sections 3.4, 3.5 and 5.
//
//   sys/WorkflowContext@1         data for the code: time, entropy, height, identity of the instance
//   sys/EffectReceiptEnvelope@1   the receipt of an effect, for the instance that requested the effect
//   sys/EffectReceiptRejected@1   a receipt whose payload does not match its schema, for the same instance
//   sys/EffectFailure@1           the payload of a receipt that is not ok: {detail, message}
//   sys/Any@1                     any value
// The payload of an envelope is the value itself in canonical form, not a byte string that contains the value.
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

// An effect that the system performs itself. The names of its schemas have .params or .receipt before the version:
// sys/timer@1 has the schemas sys/timer.params@1 and sys/timer.receipt@1.
//   sys/timer@1     {at_ms?, after_ms?}: fires at the later time, or at once      -> {fired_ms}
//   sys/flow@1      {flow, inputs}; `flow` is the name of a stored definition     -> {flow_id, result}
//   sys/signal@1    {flow_id, name, payload?}                                     -> {delivered}
//   sys/approval@1  {title, approvers, text?, timeout_ms?}                        -> {approved, by, comment?}
//   sys/cancel@1    {ref}: cancels the effects with this issuer_ref               -> {cancelled}: number of cancelled
//                                                                                     timers and approvals
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
