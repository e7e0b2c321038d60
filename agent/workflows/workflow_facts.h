// The facts in the journal of a deployment. A deployment is an applied manifest with its workflow instances; a context
// and the name of the manifest identify it. Facts are ordered by height (1, 2, 3 ...), and each fact is one
// deterministic CBOR map. The state of a deployment follows from its facts alone, without manifests or code. The facts
// of one decision (workflow_decider.h) are written in one atomic step, which fails if the journal has another height.
// No side effects; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "base/result.h"

namespace mycojobs {

// Identifies an instance of a workflow. A workflow without keys has one instance, whose key is empty.
struct InstanceId {
  std::string workflow;
  std::string key;  // CBOR
  bool operator==(const InstanceId&) const = default;
  bool operator<(const InstanceId& other) const {
    return std::tie(workflow, key) < std::tie(other.workflow, other.key);
  }
};
std::string display_name(const InstanceId&);         // name in messages: acme/order@1[k7]
std::string store_name(const InstanceId&);           // name in the store: acme/order@1 and the key in hex
InstanceId parse_store_name(std::string_view name);  // the inverse of store_name()

// Identifies an event in the inbox of an instance: the height of the fact that delivered the event, and the index of
// the instance among the targets of that fact.
struct InboxEventId {
  std::uint64_t height = 0, slot = 0;
  bool operator==(const InboxEventId&) const = default;
  bool operator<(const InboxEventId& other) const {
    return std::tie(height, slot) < std::tie(other.height, other.slot);
  }
};

// Time and randomness for the workflow code, sampled once per input. The entropy of an event that a step emits is
// derived from the sample of the step (derive_entropy()).
struct Sample {
  std::uint64_t now_ms = 0;
  std::string entropy;  // 32 bytes
  bool operator==(const Sample&) const = default;
};
// `index` is the index of the event among the events of the step.
std::string derive_entropy(const Sample&, std::uint64_t index);

// State of an instance, identified by the SHA-256 of its bytes. The bytes of a spilled state are not stored here but in
// the blob with this hash; `bytes` is then empty.
struct StateRef {
  std::string hash;  // lower-case hex
  std::uint64_t size = 0;
  std::string bytes;
  bool is_spilled() const { return bytes.empty() && size > 0; }
  bool operator==(const StateRef&) const = default;
};

// An effect that a step requested. The hash identifies the intent. It is also the idempotency key of the job or flow
// that performs the effect.
struct Intent {
  std::string hash;  // intent_hash()
  std::string effect, params;
  std::uint64_t index = 0;  // index among the effects of the step
  std::string issuer_ref;
  bool operator==(const Intent&) const = default;
};
struct IntentOrigin {
  std::string deployment;
  InstanceId instance;
  std::string workflow_hash;
  std::uint64_t sequence = 0;  // height of the fact of the step; unique, even after an instance was deleted
};
// Returns the hash over the origin, and over effect, params and index of the intent, in lower-case hex.
std::string intent_hash(const IntentOrigin&, const Intent&);

// A manifest was applied.
struct ManifestApplied {
  std::string manifest;           // hash
  std::string name;               // name of the manifest
  std::string replaced_manifest;  // hash; empty for the first manifest of the deployment
  bool operator==(const ManifestApplied&) const = default;
};
// An instance that an event was routed to.
struct EventTarget {
  InstanceId instance;
  std::string manifest;  // hash; the instance runs code of this manifest
  std::string arm;       // arm of the variant that wraps the event; empty if the event is not wrapped
  // Reason why the event was not delivered: "failed" (the instance has failed) or "unfit" (the older code of the
  // instance does not accept the event). Empty if the event was delivered.
  std::string skip_reason;
  bool operator==(const EventTarget&) const = default;
};
// An event was accepted: an event from outside of the deployment, or an event that a step emitted.
struct EventAccepted {
  std::string schema, value;
  std::string source;                 // sender of an event from outside
  std::optional<InstanceId> emitter;  // instance whose step emitted the event
  std::uint64_t emitter_height = 0;   // height of the fact of that step
  Sample sample;
  std::vector<EventTarget> targets;
  // Number of events in the chain of steps that led to this event, since an event from outside or a receipt.
  std::uint64_t depth = 0;
  bool operator==(const EventAccepted&) const = default;
};
// A step was executed. The events that the step emitted follow as EventAccepted in the same decision.
struct StepTaken {
  InstanceId instance;
  InboxEventId event_id;
  std::string output;             // hash of the encoded answer of the engine
  std::optional<StateRef> state;  // no value if the state is null
  std::vector<Intent> intents;
  std::uint64_t events = 0;  // number of emitted events
  std::optional<std::string> annotations;
  bool operator==(const StepTaken&) const = default;
};
// A step failed, because the code failed or returned an invalid answer. InstanceFailed follows in the same decision.
struct StepFailed {
  InstanceId instance;
  InboxEventId event_id;
  std::string output;         // hash of the encoded answer of the engine
  std::string kind, message;  // `kind` is StepError::kind, also kStepErrorContract
  bool operator==(const StepFailed&) const = default;
};
// An effect was published.
struct EffectPublished {
  InstanceId instance;
  std::string intent, effect_ref;  // `effect_ref` names the job, flow or timer that performs the effect
  bool operator==(const EffectPublished&) const = default;
};
enum class ReceiptStatus { ok, error, timeout, cancelled };
std::string_view to_string(ReceiptStatus);
std::optional<ReceiptStatus> parse_receipt_status(std::string_view);
// A receipt was accepted: the intent has completed, and the receipt is in the inbox of the instance.
struct ReceiptAdmitted {
  InstanceId instance;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;             // CBOR
  std::string module, entrypoint;  // code of the executor; empty if unknown
  std::string arm;                 // as EventTarget::arm
  Sample sample;
  bool operator==(const ReceiptAdmitted&) const = default;
};
// A receipt with an invalid signature was rejected. The intent stays pending.
struct ReceiptRefused {
  InstanceId instance;
  std::string intent, reason;
  bool operator==(const ReceiptRefused&) const = default;
};
// The payload of a receipt does not match its schema. The intent has completed. If the event schema of the workflow has
// an arm for rejected receipts, the rejection is added to the inbox of the instance; otherwise InstanceFailed follows.
struct ReceiptMismatched {
  InstanceId instance;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string reason;
  std::optional<std::string> arm;
  Sample sample;
  bool operator==(const ReceiptMismatched&) const = default;
};
inline constexpr const char* kCancelledFailure = "cancelled";  // InstanceFailed::kind after a cancellation
// An instance failed. It executes no further step, its pending intents have completed, and its inbox is empty.
struct InstanceFailed {
  InstanceId instance;
  std::string kind, message;                 // `kind` is step, receipt, nondeterministic or cancelled
  std::vector<std::string> dropped_intents;  // hashes of all intents that were pending
  bool operator==(const InstanceFailed&) const = default;
};
// An instance of a workflow without keys has completed: its state is null, its inbox is empty, and no intent is
// pending. The instance stays listed.
struct InstanceCompleted {
  InstanceId instance;
  bool operator==(const InstanceCompleted&) const = default;
};
// An instance of a keyed workflow has completed, or a failed instance was removed by an operator.
struct InstanceDeleted {
  InstanceId instance;
  std::string actor;  // actor that removed a failed instance; empty if the instance has completed
  bool operator==(const InstanceDeleted&) const = default;
};
struct SnapshotTaken {
  std::string hash;  // hash of the snapshot's bytes
  std::uint64_t size = 0;
  bool operator==(const SnapshotTaken&) const = default;
};

struct WorkflowFact {
  std::uint64_t height = 0, at_ms = 0;
  std::variant<ManifestApplied, EventAccepted, StepTaken, StepFailed, EffectPublished, ReceiptAdmitted, ReceiptRefused,
               ReceiptMismatched, InstanceFailed, InstanceCompleted, InstanceDeleted, SnapshotTaken>
      content;
  bool operator==(const WorkflowFact&) const = default;
};
// Returns applied, event, step, step_failed, published, receipt, receipt_refused, receipt_fault, failed, completed,
// deleted or snapshot.
std::string_view fact_kind(const WorkflowFact&);
// Returns the instances that the fact changes. The result is empty for facts of the deployment: applied and snapshot.
std::vector<InstanceId> affected_instances(const WorkflowFact&);

// Encodes a fact as deterministic CBOR. Error `invalid`: a text is not UTF-8.
Result<std::string> encode(const WorkflowFact&);
// Error `invalid`: the bytes are not the deterministic encoding of a fact, the kind is unknown, or a field is missing,
// unknown or of another type.
Result<WorkflowFact> decode_workflow_fact(std::string_view bytes);

}  // namespace mycojobs
