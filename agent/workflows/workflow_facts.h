// The journal of a world of workflows. A world is an applied manifest, identified by its name, in one context, with its
// instances. The facts are ordered; each has a height (1, 2, 3 ...) and is one deterministic CBOR map. A fact is
// self-contained: the state follows from the facts without manifests or code. The facts of one decision
// (workflow_decider.h) are written in one atomic step, which fails if another height has been reached. Pure and
// thread-safe. Source: seed 003, 3.2, 3.3 and 7.8.
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

// An instance. A workflow without keys has one instance, whose key is empty.
struct InstanceId {
  std::string workflow;
  std::string key;  // the key as CBOR
  bool operator==(const InstanceId&) const = default;
  bool operator<(const InstanceId& other) const {
    return std::tie(workflow, key) < std::tie(other.workflow, other.key);
  }
};
std::string shown(const InstanceId&);       // for people: acme/order@1[k7]
std::string store_name(const InstanceId&);  // for stores: acme/order@1 and its key in hex
InstanceId parse_instance_id(std::string_view store_name);

// Identifies mail of an instance: the height of the fact that delivered it, and the index among the fact's targets.
struct MailId {
  std::uint64_t height = 0, slot = 0;
  bool operator==(const MailId&) const = default;
  bool operator<(const MailId& other) const { return std::tie(height, slot) < std::tie(other.height, other.slot); }
};

// External data for the code, sampled once per input. A derived event has entropy that follows from the entropy of its
// step (derived_entropy()).
struct Sample {
  std::uint64_t now_ms = 0;
  std::string entropy;  // 32 bytes
  bool operator==(const Sample&) const = default;
};
std::string derived_entropy(const Sample&, std::uint64_t place);

// A state, identified by the SHA-256 of its bytes. If `bytes` is empty, the state is spilled: the blob of this hash has
// the bytes.
struct StateRef {
  std::string hash;  // lower-case hex
  std::uint64_t size = 0;
  std::string bytes;
  bool spilled() const { return bytes.empty() && size > 0; }
  bool operator==(const StateRef&) const = default;
};

// An effect that a step requested. The hash identifies the intent, and is the idempotency key of the job that carries
// the effect.
struct Intent {
  std::string hash;  // intent_hash()
  std::string effect, params;
  std::uint64_t index = 0;  // index among the effects of the step
  std::string issuer_ref;
  bool operator==(const Intent&) const = default;
};
struct IntentOrigin {
  std::string deployment;
  InstanceId cell;
  std::string workflow_hash;
  std::uint64_t sequence = 0;  // height of the step's fact: unique, even after a cell was deleted
};
// Returns lower-case hex that covers the whole origin, and effect, params and index of the intent.
std::string intent_hash(const IntentOrigin&, const Intent&);

// A manifest was applied.
struct ManifestApplied {
  std::string manifest, name, replaced;  // manifest, replaced: hashes; replaced is empty for the first manifest
  bool operator==(const ManifestApplied&) const = default;
};
// A receiver of an event.
struct EventTarget {
  InstanceId cell;
  std::string manifest;  // hash; the instance runs code of this manifest
  std::string arm;       // the arm as which the event is wrapped; empty: not wrapped
  // Why it was not delivered: failed (the instance has failed), unfit (its older code does not take it); empty:
  // delivered.
  std::string skipped;
  bool operator==(const EventTarget&) const = default;
};
// An event was accepted, from outside or from a step.
struct EventAccepted {
  std::string schema, value;
  std::string source;              // the sender, if from outside
  std::optional<InstanceId> from;  // the instance whose step emitted it
  std::uint64_t from_step = 0;     // height of the fact of that step
  Sample sample;
  std::vector<EventTarget> targets;
  // Number of events in the chain of steps that led to this event, since an event from outside or a receipt.
  std::uint64_t depth = 0;
  bool operator==(const EventAccepted&) const = default;
};
// A step was taken. Its events follow as EventAccepted in the same decision.
struct StepTaken {
  InstanceId cell;
  MailId mail;
  std::string output;             // hash of the engine's encoded answer
  std::optional<StateRef> state;  // no value: null
  std::vector<Intent> intents;
  std::uint64_t events = 0;
  std::optional<std::string> ann;
  bool operator==(const StepTaken&) const = default;
};
// A step failed: the code failed, or its answer is invalid. Failed follows.
struct StepFailed {
  InstanceId cell;
  MailId mail;
  std::string output;         // hash of the engine's encoded answer
  std::string kind, message;  // kind: a word of StepError, or contract
  bool operator==(const StepFailed&) const = default;
};
// An effect was published.
struct EffectPublished {
  InstanceId cell;
  std::string intent, effect_ref;  // carrier: the job, flow or timer that performs the effect
  bool operator==(const EffectPublished&) const = default;
};
enum class ReceiptStatus { ok, error, timeout, cancelled };
std::string_view to_string(ReceiptStatus);
std::optional<ReceiptStatus> parse_receipt_status(std::string_view);
// A receipt was admitted: its intent is settled, and the instance has mail.
struct ReceiptAdmitted {
  InstanceId cell;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;             // CBOR
  std::string module, entrypoint;  // code of the executor; empty: unknown
  std::string arm;
  Sample sample;
  bool operator==(const ReceiptAdmitted&) const = default;
};
// A receipt with an invalid signature was refused; its intent is not settled.
struct ReceiptRefused {
  InstanceId cell;
  std::string intent, reason;
  bool operator==(const ReceiptRefused&) const = default;
};
// The payload of a receipt does not match its schema. The intent is settled. If the event type has an arm for this
// case, the instance gets the receipt as mail; otherwise InstanceFailed follows.
struct ReceiptMismatched {
  InstanceId cell;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string reason;
  std::optional<std::string> arm;
  Sample sample;
  bool operator==(const ReceiptMismatched&) const = default;
};
inline constexpr const char* kCancelledFailure = "cancelled";
// The instance takes no further step. Its intents are settled, and its mail is dropped.
struct InstanceFailed {
  InstanceId cell;
  std::string kind, message;         // kind: step, receipt, nondeterministic, cancelled
  std::vector<std::string> dropped;  // hashes of intents
  bool operator==(const InstanceFailed&) const = default;
};
// An instance of a workflow without keys has ended: its state is null, and it has no mail and no pending intent. It
// stays listed.
struct InstanceCompleted {
  InstanceId cell;
  bool operator==(const InstanceCompleted&) const = default;
};
// A cell of a keyed workflow has ended, or a failed instance was removed.
struct InstanceDeleted {
  InstanceId cell;
  std::string by;  // the actor that removed a failed instance; empty: ended by its own code
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
      what;
  bool operator==(const WorkflowFact&) const = default;
};
// Returns applied, event, step, step_failed, published, receipt, receipt_refused, receipt_fault, failed, completed,
// deleted or snapshot.
std::string_view kind_of(const WorkflowFact&);
// Returns the instances that the fact concerns: those of its targets, or its cell; none for facts of the whole world.
std::vector<InstanceId> instances_of(const WorkflowFact&);

Result<std::string> encode(const WorkflowFact&);  // error invalid: a text is not UTF-8
// Error invalid: not the deterministic encoding, an unknown kind, or a field that is missing, unknown or of another
// type.
Result<WorkflowFact> decode_workflow_fact(std::string_view bytes);

}  // namespace mycojobs
