#include "workflows/manifest/system_schemas.h"

#include <nlohmann/json.hpp>

namespace mycojobs {
namespace {

using nlohmann::json;

// The schemas of the values that the system itself passes to workflows or receives from them, in the format of a
// manifest. sys/NAME.params@1 is the schema of the parameters of the effect NAME, and sys/NAME.receipt@1 the schema of
// its receipt. The maximum of 315360000000 ms is ten years. cell_mode is true for keyed workflows, and height is the
// position in the journal.
constexpr const char* kSystemSchemasJson = R"json({
  "sys/Any@1": {},
  "sys/WorkflowContext@1": {"type": "object",
    "required": ["now_ms", "entropy", "height", "manifest_hash", "workflow", "workflow_hash", "cell_mode"],
    "properties": {
      "now_ms": {"type": "integer", "minimum": 0}, "entropy": {"type": "string", "format": "bytes"},
      "height": {"type": "integer", "minimum": 1}, "manifest_hash": {"type": "string"},
      "workflow": {"type": "string"}, "workflow_hash": {"type": "string"},
      "key": {}, "cell_mode": {"type": "boolean"}}},
  "sys/EffectReceiptEnvelope@1": {"type": "object",
    "required": ["workflow", "workflow_hash", "intent", "effect", "payload", "status", "sequence", "index"],
    "properties": {
      "workflow": {"type": "string"}, "workflow_hash": {"type": "string"}, "key": {},
      "intent": {"type": "string"}, "effect": {"type": "string"},
      "executor": {"type": "object", "required": ["module", "entrypoint"], "properties": {
        "module": {"type": "string"}, "entrypoint": {"type": "string"}}},
      "issuer_ref": {"type": "string"}, "payload": {},
      "status": {"type": "string", "enum": ["ok", "error", "timeout", "cancelled"]},
      "sequence": {"type": "integer", "minimum": 1}, "index": {"type": "integer", "minimum": 0}}},
  "sys/EffectReceiptRejected@1": {"type": "object",
    "required": ["workflow", "workflow_hash", "intent", "effect", "status", "reason", "sequence", "index"],
    "properties": {
      "workflow": {"type": "string"}, "workflow_hash": {"type": "string"}, "key": {},
      "intent": {"type": "string"}, "effect": {"type": "string"}, "issuer_ref": {"type": "string"},
      "status": {"type": "string", "enum": ["ok", "error", "timeout", "cancelled"]},
      "reason": {"type": "string"},
      "sequence": {"type": "integer", "minimum": 1}, "index": {"type": "integer", "minimum": 0}}},
  "sys/EffectFailure@1": {"type": "object", "required": ["detail"], "properties": {
    "detail": {"type": "string"}, "message": {"type": "string"}}},

  "sys/timer.params@1": {"type": "object", "properties": {
    "at_ms": {"type": "integer", "minimum": 0},
    "after_ms": {"type": "integer", "minimum": 0, "maximum": 315360000000}}},
  "sys/timer.receipt@1": {"type": "object", "required": ["fired_ms"], "properties": {
    "fired_ms": {"type": "integer", "minimum": 0}}},
  "sys/flow.params@1": {"type": "object", "required": ["flow"], "properties": {
    "flow": {"type": "string", "minLength": 1}, "inputs": {"type": "object", "additionalProperties": {}}}},
  "sys/flow.receipt@1": {"type": "object", "required": ["flow_id", "result"], "properties": {
    "flow_id": {"type": "integer", "minimum": 1}, "result": {"type": "object", "additionalProperties": {}}}},
  "sys/signal.params@1": {"type": "object", "required": ["flow_id", "name"], "properties": {
    "flow_id": {"type": "integer", "minimum": 1}, "name": {"type": "string", "minLength": 1, "maxLength": 64},
    "payload": {}}},
  "sys/signal.receipt@1": {"type": "object", "required": ["delivered"], "properties": {
    "delivered": {"type": "boolean"}}},
  "sys/approval.params@1": {"type": "object", "required": ["title", "approvers"], "properties": {
    "title": {"type": "string", "minLength": 1, "maxLength": 200}, "text": {"type": "string", "maxLength": 4096},
    "approvers": {"type": "array", "minItems": 1, "maxItems": 100, "items": {"type": "integer", "minimum": 1}},
    "timeout_ms": {"type": "integer", "minimum": 1, "maximum": 315360000000}}},
  "sys/approval.receipt@1": {"type": "object", "required": ["approved", "by"], "properties": {
    "approved": {"type": "boolean"}, "by": {"type": "integer", "minimum": 1},
    "comment": {"type": "string", "maxLength": 4096}}},
  "sys/cancel.params@1": {"type": "object", "required": ["ref"], "properties": {
    "ref": {"type": "string", "minLength": 1}}},
  "sys/cancel.receipt@1": {"type": "object", "required": ["cancelled"], "properties": {
    "cancelled": {"type": "integer", "minimum": 0}}}
})json";

}  // namespace

const std::vector<SystemEffect>& system_effects() {
  static const std::vector<SystemEffect> kEffects{
      {kTimerEffect, "sys/timer.params@1", "sys/timer.receipt@1"},
      {kFlowEffect, "sys/flow.params@1", "sys/flow.receipt@1"},
      {kSignalEffect, "sys/signal.params@1", "sys/signal.receipt@1"},
      {kApprovalEffect, "sys/approval.params@1", "sys/approval.receipt@1"},
      {kCancelEffect, "sys/cancel.params@1", "sys/cancel.receipt@1"},
  };
  return kEffects;
}

const json& system_schemas() {
  static const json kSystemSchemas = json::parse(kSystemSchemasJson);
  return kSystemSchemas;
}

}  // namespace mycojobs
