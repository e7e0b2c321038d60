// The journal of a world of workflows: facts in one order, each at its height (1, 2, 3 ...), each one deterministic
// CBOR map. A fact is all that a reader needs: state follows from facts without manifests and without code. Pure; any
// thread. Source: seed 003, 3.2, 3.3 and 7.8.
//
// A world is one manifest's name in one context. Facts of one decision (workflow_decide.h) are written in one atomic
// step, fenced by the height that was read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

// An instance. A workflow without keys has one, whose key is empty.
struct CellId {
  std::string workflow;
  std::string key;  // CBOR of the key
  bool operator==(const CellId&) const = default;
  bool operator<(const CellId& other) const { return std::tie(workflow, key) < std::tie(other.workflow, other.key); }
};
std::string shown(const CellId&);       // for people: acme/order@1[k7]
std::string store_name(const CellId&);  // for stores: acme/order@1 and its key in hex
CellId cell_named(std::string_view store_name);

// What an instance has been sent, by the fact that sent it and the place among that fact's targets.
struct MailId {
  std::uint64_t height = 0, slot = 0;
  bool operator==(const MailId&) const = default;
  bool operator<(const MailId& other) const { return std::tie(height, slot) < std::tie(other.height, other.slot); }
};

// What the world outside gives to the code, sampled once when something comes in. Derived events have entropy that
// follows from the step's (derived_entropy()).
struct Sample {
  std::uint64_t now_ms = 0;
  std::string entropy;  // 32 bytes
  bool operator==(const Sample&) const = default;
};
std::string derived_entropy(const Sample&, std::uint64_t place);

// A state, by the SHA-256 of its bytes. bytes empty: they lie in the blob of that name.
struct StateRef {
  std::string hash;  // lower-case hex
  std::uint64_t size = 0;
  std::string bytes;
  bool spilled() const { return bytes.empty() && size > 0; }
  bool operator==(const StateRef&) const = default;
};

// An effect that a step asked for. The intent is its identity, and the idempotency key of what carries it out.
struct Intent {
  std::string hash;  // intent_hash()
  std::string effect, params;
  std::uint64_t index = 0;  // among the effects of its step
  std::string issuer_ref;
  bool operator==(const Intent&) const = default;
};
struct IntentOrigin {
  std::string world;
  CellId cell;
  std::string workflow_hash;
  std::uint64_t sequence = 0;  // height of the step's fact: never the same twice, also after a cell was deleted
};
// Lower-case hex. Binds all of the origin, and effect, params and index.
std::string intent_hash(const IntentOrigin&, const Intent&);

struct Applied {
  std::string manifest, name, replaced;  // manifest, replaced: hashes; replaced empty: the first
  bool operator==(const Applied&) const = default;
};
// An event came in, from outside or from a step.
struct EventTarget {
  CellId cell;
  std::string manifest;  // whose code the instance runs
  std::string arm;       // wrapped as it; empty: as it is
  std::string skipped;   // not delivered: failed (the instance), unfit (its older code does not take it); empty: it was
  bool operator==(const EventTarget&) const = default;
};
struct EventIn {
  std::string schema, value;
  std::string source;           // who sent it, from outside
  std::optional<CellId> from;   // whose step emitted it
  std::uint64_t from_step = 0;  // height of the step's fact
  Sample sample;
  std::vector<EventTarget> targets;
  std::uint64_t depth = 0;  // so many events, each from a step on the one before, since one from outside or a receipt
  bool operator==(const EventIn&) const = default;
};
// A step was taken. The events that it emitted follow as EventIn in the same decision.
struct StepTaken {
  CellId cell;
  MailId mail;
  std::string output;             // hash of the engine's encoded answer
  std::optional<StateRef> state;  // nothing: null
  std::vector<Intent> intents;
  std::uint64_t events = 0;
  std::optional<std::string> ann;
  bool operator==(const StepTaken&) const = default;
};
// The step could not be taken: the code failed, or gave what it may not. StepFailed is followed by Failed.
struct StepFailed {
  CellId cell;
  MailId mail;
  std::string output;         // hash of the engine's encoded answer
  std::string kind, message;  // kind: a word of StepError, or contract
  bool operator==(const StepFailed&) const = default;
};
struct EffectPublished {
  CellId cell;
  std::string intent, carrier;  // carrier: the job or timer that carries it out
  bool operator==(const EffectPublished&) const = default;
};
enum class ReceiptStatus { ok, error, timeout, cancelled };
std::string_view word(ReceiptStatus);
std::optional<ReceiptStatus> parse_receipt_status(std::string_view);
// A receipt was admitted: its intent is settled, the instance has mail.
struct ReceiptAdmitted {
  CellId cell;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;             // CBOR
  std::string module, entrypoint;  // of the executor; empty: not known
  std::string arm;
  Sample sample;
  bool operator==(const ReceiptAdmitted&) const = default;
};
struct ReceiptRefused {  // a signature that does not hold; nothing is settled
  CellId cell;
  std::string intent, reason;
  bool operator==(const ReceiptRefused&) const = default;
};
// The payload does not fit: the intent is settled. With an arm the instance has mail, else Failed follows.
struct ReceiptFaulted {
  CellId cell;
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string reason;
  std::optional<std::string> arm;
  Sample sample;
  bool operator==(const ReceiptFaulted&) const = default;
};
// The instance will take no step any more; what it waited for is settled, its mail dropped.
inline constexpr const char* kCancelledFailure = "cancelled";
struct Failed {
  CellId cell;
  std::string kind, message;         // kind: step, receipt, nondeterministic, cancelled
  std::vector<std::string> dropped;  // intents
  bool operator==(const Failed&) const = default;
};
// A state of null, no mail and nothing pending. A cell is gone then; a workflow without keys stays listed.
struct Completed {
  CellId cell;
  bool operator==(const Completed&) const = default;
};
struct Deleted {
  CellId cell;
  std::string by;  // who removed a failed one; empty: its own code
  bool operator==(const Deleted&) const = default;
};
struct SnapshotTaken {
  std::string hash;  // of its bytes
  std::uint64_t size = 0;
  bool operator==(const SnapshotTaken&) const = default;
};

struct WorkflowFact {
  std::uint64_t height = 0, at_ms = 0;
  std::variant<Applied, EventIn, StepTaken, StepFailed, EffectPublished, ReceiptAdmitted, ReceiptRefused,
               ReceiptFaulted, Failed, Completed, Deleted, SnapshotTaken>
      what;
  bool operator==(const WorkflowFact&) const = default;
};
// applied, event, step, step_failed, published, receipt, receipt_refused, receipt_fault, failed, completed, deleted,
// snapshot
std::string_view kind_of(const WorkflowFact&);
// Whom it concerns: the cells of its targets, or its cell. Facts of the world itself: none.
std::vector<CellId> cells_of(const WorkflowFact&);

Result<std::string> encode(const WorkflowFact&);  // error invalid: a text that is not UTF-8
// Error invalid: not the one encoding, a kind that nobody knows, a field that is missing, unknown or of another type.
Result<WorkflowFact> decode_workflow_fact(std::string_view bytes);

}  // namespace mycojobs
