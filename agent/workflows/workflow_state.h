// The state of a deployment, computed from its facts: instances, their inboxes, pending intents, and the order of
// steps. fold() applies a fact; a fact that does not fit the state is reported as a problem and changes nothing. No
// side effects; not thread-safe.
//
// Status of an instance (InstanceState::status()):
//   (none) --event--> running --step--> running (the inbox has more events) | waiting | completed
//                     waiting --event, receipt--> running
//                     completed --event--> running
//   any --failed--> failed      an invalid receipt without an arm for it, a failed step, another output in a replay
//
//   running    The inbox has an event.
//   waiting    The inbox is empty; the instance has a state or pending intents.
//   completed  The state is null, and there are no pending intents. An instance of a keyed workflow is then deleted.
//   failed     Terminal. An operator removes the instance.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/workflow_facts.h"

namespace mycojobs {

enum class InstanceStatus { running, waiting, completed, failed };
std::string_view to_string(InstanceStatus);

// An event or receipt that an instance has not processed. An inbox is ordered by arrival.
struct InboxEvent {
  InboxEventId id;
  std::string schema;  // schema of the event itself, not of the variant that wraps the event
  std::string value;   // CBOR, wrapped, as passed to the code
  Sample sample;
  std::string intent;       // intent of a receipt; empty for a domain event
  std::uint64_t depth = 0;  // EventAccepted::depth
  bool operator==(const InboxEvent&) const = default;
};
// An intent without a receipt.
struct PendingIntent {
  Intent intent;
  std::uint64_t sequence = 0;      // height of the fact of the step that requested the effect
  std::uint64_t requested_ms = 0;  // time of that fact
  bool published = false;
  std::string effect_ref;
  bool operator==(const PendingIntent&) const = default;
};
// Number of completed intents that an instance remembers. A repeated receipt of an older intent is an unknown intent.
inline constexpr std::size_t kMaxCompletedIntents = 1024;

struct InstanceState {
  InstanceId id;
  std::string manifest;  // hash of the manifest whose code the instance runs
  std::optional<StateRef> state;
  std::deque<InboxEvent> inbox;
  std::map<std::string, PendingIntent> pending_intents;  // by hash of the intent
  std::deque<std::string> completed_intents;             // hashes, the latest at the end
  bool failed = false;
  std::string failure, message;                       // InstanceFailed::kind and ::message, if `failed`
  std::uint64_t created_height = 0, last_height = 0;  // heights of the first and the last fact of the instance
  std::uint64_t steps = 0;                            // number of successful steps
  std::uint64_t refused_receipts = 0;                 // number of receipts with an invalid signature

  InstanceStatus status() const;
  std::string workflow_hash() const;
  bool is_completed_intent(std::string_view intent) const;
  // Returns whether the status is completed. InstanceCompleted or InstanceDeleted is then the next fact.
  bool has_completed() const;
  // Returns a copy with at most `max_events` of the events in the inbox.
  InstanceState copy_with_inbox_prefix(std::size_t max_events) const;
  bool operator==(const InstanceState&) const = default;
};

// Records the instances that find_instance() does not find, while `ids` is set. A deployment in memory may have only a
// part of its instances; its owner then reads the missing instances and repeats the decision.
struct MissingInstances {
  std::set<InstanceId>* ids = nullptr;
  bool operator==(const MissingInstances&) const { return true; }
};

// A state may have only a part of the instances of a deployment. It always has the instances with events in their
// inboxes or with pending intents; `completed_intents` has the intents of the instances in `instances`.
struct DeploymentState {
  std::string id;        // "<context>/<manifest's name>"; part of every intent hash
  std::string manifest;  // hash of the manifest in force; empty if no manifest was applied
  std::uint64_t height = 0;
  std::map<InstanceId, InstanceState> instances;
  // Queue of the instances with events in their inboxes, by ticket number. The instance with the lowest number executes
  // the next step. If its inbox has more events after the step, it gets a new ticket behind all others.
  std::map<std::uint64_t, InstanceId> ready_instances;
  std::map<InstanceId, std::uint64_t> tickets;  // inverse of ready_instances
  std::uint64_t next_ticket = 0;
  std::map<std::string, InstanceId> intents;            // instances by their pending intents
  std::map<std::string, InstanceId> completed_intents;  // instances by the completed intents that they remember
  std::uint64_t refused_receipts = 0;                   // number of receipts with an invalid signature
  MissingInstances missing = {};
  bool operator==(const DeploymentState&) const = default;

  const InstanceState* find_instance(const InstanceId&) const;  // nullptr if there is no such instance
};

// Describes a fact that does not fit the state. `rule` is a name from the list below; `text` names the height.
struct WorkflowProblem {
  std::string_view rule;
  std::string text;
};
inline constexpr std::string_view kHeightRule = "workflow-height";  // not the next height
inline constexpr std::string_view kInstanceRule =
    "workflow-cell";                                             // no such instance, or an instance that must not exist
inline constexpr std::string_view kInboxRule = "workflow-mail";  // not the next event of the inbox
inline constexpr std::string_view kIntentRule = "workflow-intent";  // not pending, or already pending
inline constexpr std::string_view kFailedRule = "workflow-failed";  // the instance has failed
// The instance is not at its end, or the hash of a state is wrong.
inline constexpr std::string_view kStateRule = "workflow-state";
inline constexpr std::string_view kManifestRule = "workflow-manifest";  // replaces a manifest that is not in force
inline constexpr std::string_view kValueRule = "workflow-value";        // a value that is not CBOR

// Returns the value of the inbox event that a fact delivers to an instance. Error `invalid`: the value is not CBOR, or
// is nested too deeply after it was wrapped.
Result<std::string> encode_inbox_value(const EventAccepted&, const EventTarget&);
Result<std::string> encode_inbox_value(const InstanceState&,
                                       const ReceiptAdmitted&);  // REQUIRES: the intent is pending
Result<std::string> encode_inbox_value(const InstanceState&,
                                       const ReceiptMismatched&);  // REQUIRES: the receipt has an arm

std::optional<WorkflowProblem> fold(DeploymentState&, const WorkflowFact&);
// Folds the facts of one instance (affected_instances()) without the rest of the deployment, with the same result for
// the instance. A state without a value means that the instance does not exist.
std::optional<WorkflowProblem> fold(std::optional<InstanceState>&, const InstanceId&, const WorkflowFact&);

// Error `unavailable`: the state is spilled, and the blob was not attached.
Result<std::string> get_state_bytes(const StateRef&);
// Sets the bytes of a spilled state. Error `invalid`: the blob has another hash or size.
Result<void> attach_blob(StateRef&, std::string blob);

// Returns whether the instance has neither events in its inbox nor pending intents. Only such an instance can be
// removed from memory.
bool is_idle(const InstanceState&);
// Adds an instance that was read, with its intents. REQUIRES: the state does not have the instance.
void add_instance(DeploymentState&, InstanceState);
// Removes an idle instance from memory.
void forget_instance(DeploymentState&, const InstanceId&);
// Encodes an instance as CBOR, without its id and manifest. decode_anonymous_instance() is the inverse.
Result<std::string> encode_anonymous(const InstanceState&);
Result<InstanceState> decode_anonymous_instance(std::string_view bytes, InstanceId id, std::string manifest);

// Encodes a deployment as canonical CBOR, without the bytes of spilled states. decode_deployment() is the inverse.
Result<std::string> encode(const DeploymentState&);
Result<DeploymentState> decode_deployment(std::string_view bytes);
// Returns a digest of the instances of a keyed workflow: SHA-256 over [key hash, key, state hash, state size, last
// height] of each instance, in the order of the key hashes. Equal sets of instances have equal digests.
std::string compute_cell_index_root(const DeploymentState&, std::string_view workflow);
// Returns the hashes of the blobs of spilled states, which garbage collection must not delete.
std::set<std::string> referenced_blobs(const DeploymentState&);

}  // namespace mycojobs
