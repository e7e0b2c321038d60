// Decides the next facts of a world of workflows: decide(world, input) -> facts, blobs, effects to publish. Pure: time
// and entropy are part of the input. The caller writes the blobs, then the facts in one atomic step that fails if the
// height is not WorkflowDecision::base any more, and then publishes the effects. A caller that loses this race discards
// its decision and decides again. Effects in next_effects_to_publish() are published repeatedly until a fact records
// the publication. Source: seed 003, 4. The numbers are those of the invariants in workflows.md.
//
//   EventArrived   --> routed by the manifest in force, in its order; keyed; a new cell starts with null    (2, 8, 11)
//   next_instances() --> request_of() --> engine --> StepCompleted                                              (9)
//   StepCompleted  --> checked, then state, intents and derived events, or the instance fails               (1, 2, 3)
//   next_effects_to_publish() --> the caller publishes the effect --> EffectDispatched (10) ReceiptArrived -->
//   admitted, refused, a fault, a repetition or unknown                                  (4 - 7) ApplyManifest,
//   TakeSnapshot, OutputMismatchFound, RemoveInstance, CancelInstance                                  (12 - 14)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "executors/lua/workflowhost/step_codec.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

// An event from outside of the world.
struct EventArrived {
  std::string schema;
  std::string value;  // JSON or CBOR
  ValueForm form = ValueForm::from_json;
  std::string source = {};  // shown to people: actor:7
};
struct StepCompleted {
  InstanceId cell;
  MailId mail;  // the mail that the request was made for
  StepAnswer answer;
};
struct EffectDispatched {
  std::string intent, effect_ref;
};
struct ReceiptArrived {
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  // JSON or CBOR, of the effect's receipt schema. If status is not ok: of sys/EffectFailure@1.
  std::string payload;
  ValueForm form = ValueForm::from_json;
  std::string module, entrypoint;  // code of the executor; empty: unknown
  std::string refused;             // why the signature is invalid; empty: the signature is valid
};
struct ApplyManifest {
  std::string hash;  // hash of a manifest in the catalog
};
struct TakeSnapshot {};
// verify_replay() has found a step with another output.
struct OutputMismatchFound {
  InstanceId cell;
  std::uint64_t height = 0;
};
// Removes a failed instance.
struct RemoveInstance {
  InstanceId cell;
  std::string by;
};
// Ends an instance on behalf of an operator: the instance fails as cancelled.
struct CancelInstance {
  InstanceId cell;
  std::string by, reason;  // reason: may be empty
};
struct WorkflowInput {
  Sample sample;
  std::variant<EventArrived, StepCompleted, EffectDispatched, ReceiptArrived, ApplyManifest, TakeSnapshot,
               OutputMismatchFound, RemoveInstance, CancelInstance>
      what;
};

struct WorkflowBlob {
  std::string hash, bytes;
  bool operator==(const WorkflowBlob&) const = default;
};
struct EffectToPublish {
  InstanceId cell;
  std::string workflow_hash;
  PendingIntent pending;
};
struct WorkflowDecision {
  std::uint64_t base = 0;  // the height at which the decision was made
  std::vector<WorkflowFact> facts;
  std::vector<WorkflowBlob> blobs;       // spilled states and pages of a snapshot; to be written before the facts
  std::vector<EffectToPublish> publish;  // to be published once the facts are durable
  std::vector<InstanceId> ready;         // instances that have mail now, in the order of their tickets
};
inline constexpr std::size_t kMaxSnapshotBytes = std::size_t{2} << 30;  // size of all pages (workflow_snapshot.h)
struct WorkflowRules {
  std::size_t inline_state_bytes = 64U << 10;  // a longer state is stored as a blob
  std::size_t max_state_bytes = kMaxStateBytes;
  std::size_t max_mail = 10'000;    // per instance
  std::size_t max_derived = 4'096;  // deliveries of one step
  // Limits of events that steps emit. A loop ends at these limits, by the failure of the step that would continue it.
  // max_depth: EventAccepted::depth. max_derived_mail: mail of one instance. max_ready: instances with mail.
  std::uint64_t max_depth = 1'000;
  std::size_t max_derived_mail = 100'000, max_ready = 1'000'000;
  // Limits per instance: the number of pending effects, and the bytes of their parameters. An instance that exceeds
  // them fails.
  std::size_t max_pending = 10'000, max_pending_bytes = 64U << 20;
  std::size_t max_snapshot_bytes = kMaxSnapshotBytes;
};

// Errors. An error changes nothing and is not journaled:
//   invalid      an event or key that its schema does not allow (2); an event that only the system may send
//   not_found    no workflow takes the event; an intent that no step requested ("unknown intent", 6); no such instance
//   conflict     apply or snapshot is not possible now: lists the obstacles (14); a step of mail that is not next; an
//                instance in the wrong state
//   too_large    an instance has too much mail, a snapshot too many bytes
// A repeated receipt of a settled intent is not an error and gives no facts (6). The same holds for the manifest in
// force.
Result<WorkflowDecision> decide(const DeploymentState&, const ManifestCatalog&, const WorkflowInput&,
                                const WorkflowRules& = {});
// Folds the facts of a decision. Error conflict: the world has another height. Error internal: a fact does not fit; the
// world is then unchanged.
Result<void> commit(DeploymentState&, const WorkflowDecision&);

// Returns instances that can take a step, in round-robin order, without those that are running.
std::vector<InstanceId> next_instances(const DeploymentState&, std::size_t max,
                                       const std::set<InstanceId>& running = {});
// Returns the request for the next mail of an instance. Errors: not_found (no mail, no such code), unavailable (the
// blob of the state).
Result<StepRequest> request_of(const DeploymentState&, const ManifestCatalog&, const InstanceId&);
// Returns the effects that are not published yet, in the order in which steps requested them.
std::vector<EffectToPublish> next_effects_to_publish(const DeploymentState&);

// Carriers of effects that are not carried by a job or flow.
inline constexpr const char *kTimerEffectRef = "timer", *kApprovalEffectRef = "approval";
// Returns when time settles a published timer or approval, in Unix milliseconds; 0: never.
std::uint64_t expired_receipts(const PendingIntent&);

// Returns the effects that an effect sys/cancel@1 cancels, in the order of their requests: pending effects of the same
// instance with its ref, requested before it.
std::vector<PendingIntent> cancelled_by(const InstanceState&, const PendingIntent& cancel);
// cancelled_receipt() is the receipt of a timer or approval that a sys/cancel@1 effect has cancelled. cancel_receipt()
// is the receipt of the sys/cancel@1 effect; `cancelled` does not count jobs and flows, because they may have ended
// before and report their own end.
ReceiptArrived cancelled_receipt(const std::string& intent);
ReceiptArrived cancel_receipt(const std::string& intent, std::size_t cancelled);

// A reason why a manifest cannot be applied now.
struct ApplyObstacle {
  InstanceId cell;
  std::uint64_t mail = 0;            // waiting events and receipts
  std::vector<std::string> pending;  // published intents
  std::vector<std::string> queued;   // intents that are not published yet
};
std::vector<ApplyObstacle> obstacles(const DeploymentState&);
std::string join(const std::vector<ApplyObstacle>&);

using StepEngine = std::function<StepAnswer(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&)>;

// The result of a replay: the facts are folded, and each step is repeated. The replay ends at the first different
// output.
struct ReplayVerdict {
  std::uint64_t steps = 0;
  std::optional<OutputMismatchFound> differs;
  std::optional<WorkflowProblem> problem;  // a fact that does not fit; the replay ends there
};
// Replays facts one by one.
class ReplayCheck {
 public:
  ReplayCheck(DeploymentState& deployment, const ManifestCatalog& catalog, StepEngine engine)
      : deployment_(deployment), catalog_(catalog), engine_(std::move(engine)) {}
  // Returns false if an output differs or a fact does not fit. No further fact may be folded then.
  bool fold_one(const WorkflowFact&);
  const ReplayVerdict& verdict() const { return verdict_; }

 private:
  Result<StepRequest> request_for(const InstanceId&);
  void repeat_step(const InstanceId&, const std::string& output, std::uint64_t height);

  DeploymentState& deployment_;
  const ManifestCatalog& catalog_;
  StepEngine engine_;
  ReplayVerdict verdict_;
  std::optional<std::string> last_;           // the state that the last step returned, as in the journal
  std::map<InstanceId, std::string> states_;  // spilled states, whose blobs may have been collected
};
ReplayVerdict verify_replay(DeploymentState& from, const ManifestCatalog&, const std::vector<WorkflowFact>&,
                            const StepEngine&);

}  // namespace mycojobs
