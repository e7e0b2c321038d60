// Decides the next facts of a deployment: decide(deployment, input) -> facts, blobs, effects to publish. No side
// effects: time and entropy are part of the input. The caller writes the blobs, then the facts in one atomic step that
// fails if the height of the journal is not WorkflowDecision::base any more, and then publishes the effects. A caller
// whose write fails for this reason discards the decision and decides again. The effects in next_effects_to_publish()
// are published again until a fact records the publication.
//
//   events    EventArrived is checked against its schema and routed by the active manifest, in the order of the
//             subscriptions, to the instance with the key of the event. An event that does not match gives no fact.
//   steps     next_instances() --> build_step_request() --> engine --> StepCompleted: the answer is checked; it gives a
//             state, intents and derived events, or the instance fails
//   effects   next_effects_to_publish() --> the caller publishes the effect --> EffectDispatched
//   receipts  ReceiptArrived gives one of the facts ReceiptAdmitted, ReceiptRefused (its signature is invalid) and
//             ReceiptMismatched (its payload does not match the schema), or no fact if it is repeated. An intent is
//             settled once.
//   operator  ApplyManifest, TakeSnapshot, OutputMismatchFound, RemoveInstance, CancelInstance
//
// The invariants that these rules must satisfy are listed in docs/workflows/README.md.
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

// An event from outside of the deployment.
struct EventArrived {
  std::string schema;
  std::string value;  // JSON or CBOR
  ValueForm form = ValueForm::from_json;
  std::string source = {};  // sender, for display: actor:7
};
struct StepCompleted {
  InstanceId instance;
  InboxEventId event_id;  // event that the step has processed
  StepAnswer answer;
};
struct EffectDispatched {
  std::string intent, effect_ref;
};
struct ReceiptArrived {
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  // JSON or CBOR. The schema is the receipt schema of the effect, or sys/EffectFailure@1 if the status is not ok.
  std::string payload;
  ValueForm form = ValueForm::from_json;
  std::string module, entrypoint;  // code of the executor; empty if unknown
  std::string refusal_reason;      // reason why the signature is invalid; empty if it is valid
};
struct ApplyManifest {
  std::string hash;  // hash of a manifest in the catalog
};
// The caller may have written the blobs of the snapshot (cell_index.h). Otherwise the decision has the blobs, and the
// state must have all instances.
struct TakeSnapshot {
  std::string root = {};  // hash of the written root
  std::uint64_t size = 0;
};
// A replay has found a step with another output than the journal.
struct OutputMismatchFound {
  InstanceId instance;
  std::uint64_t height = 0;
};
// Removes a failed instance.
struct RemoveInstance {
  InstanceId instance;
  std::string actor;
};
// Ends an instance on behalf of an operator. The instance fails with the kind kCancelledFailure.
struct CancelInstance {
  InstanceId instance;
  std::string actor, reason;  // the reason may be empty
};
struct WorkflowInput {
  Sample sample;
  std::variant<EventArrived, StepCompleted, EffectDispatched, ReceiptArrived, ApplyManifest, TakeSnapshot,
               OutputMismatchFound, RemoveInstance, CancelInstance>
      content;
};

struct WorkflowBlob {
  std::string hash, bytes;
  bool operator==(const WorkflowBlob&) const = default;
};
struct EffectToPublish {
  InstanceId instance;
  std::string workflow_hash;
  PendingIntent pending_intent;
};
struct WorkflowDecision {
  std::uint64_t base = 0;  // height at which the journal must still be when the facts are written
  std::vector<WorkflowFact> facts;
  std::vector<WorkflowBlob> blobs;  // spilled states, pages and root of a snapshot; to be written before the facts
  std::vector<EffectToPublish> effects_to_publish;  // to be published once the facts are durable
  std::vector<InstanceId> ready_instances;          // changed instances with events in their inboxes, in ticket order
};
inline constexpr std::size_t kMaxSnapshotBytes = std::size_t{2} << 30;  // size of all pages (workflow_snapshot.h)
struct WorkflowRules {
  std::size_t inline_state_bytes = 64U << 10;  // a longer state is stored as a blob
  std::size_t max_state_bytes = kMaxStateBytes;
  std::size_t max_inbox_events = 10'000;  // inbox size at which an instance rejects events from outside
  // Limits of the events that steps emit. The step that exceeds a limit fails, which ends a loop of events.
  std::uint64_t max_depth = 1'000;                 // EventAccepted::depth
  std::size_t max_step_deliveries = 4'096;         // deliveries of all events of one step
  std::size_t max_derived_inbox_events = 100'000;  // inbox size of a receiver
  std::size_t max_ready_instances = 1'000'000;     // instances with events in their inboxes
  // Limits of the pending effects of an instance. The step that exceeds a limit fails.
  std::size_t max_pending_intents = 10'000;
  std::size_t max_pending_param_bytes = 64U << 20;
  std::size_t max_snapshot_bytes = kMaxSnapshotBytes;
};

// After an error, nothing is journaled. Errors:
//   invalid      an event or key does not match its schema, or only the system may send the event
//   not_found    no workflow accepts the event; no step has requested the intent; unknown instance or manifest
//   conflict     apply or snapshot is not possible now; the message lists the obstacles. Also: the step has not
//                processed the next event of the inbox, or the instance has the wrong status
//   too_large    the inbox of an instance is full, or the snapshot has too many bytes
//   unavailable  a manifest is missing in the catalog
// A repeated receipt of a completed intent is not an error and gives no facts. The same applies to ApplyManifest with
// the active manifest.
Result<WorkflowDecision> decide(const DeploymentState&, const ManifestCatalog&, const WorkflowInput&,
                                const WorkflowRules& = {});
// Folds the facts of a decision into the state. Errors: `conflict` (the state has another height); `internal` (a fact
// does not fit; the state is unchanged).
Result<void> commit(DeploymentState&, const WorkflowDecision&);

// Returns instances that can execute a step, in round-robin order, except the `running` ones.
std::vector<InstanceId> next_instances(const DeploymentState&, std::size_t max,
                                       const std::set<InstanceId>& running = {});
// Returns the request for the step that processes the next event in the inbox of an instance. Errors: `not_found` (the
// inbox is empty, or the code is missing), `unavailable` (the state is spilled, and its blob was not attached).
Result<StepRequest> build_step_request(const DeploymentState&, const ManifestCatalog&, const InstanceId&);
// Returns the effects that are not published yet, in the order in which steps requested them.
std::vector<EffectToPublish> next_effects_to_publish(const DeploymentState&);

// PendingIntent::effect_ref of effects that no job or flow performs.
inline constexpr const char *kTimerEffectRef = "timer", *kApprovalEffectRef = "approval";
// Returns the time at which a published timer fires or an approval times out, in Unix milliseconds, or 0 if the effect
// has no such time.
std::uint64_t get_expiry_ms(const PendingIntent&);

// Returns the effects that an effect sys/cancel@1 cancels: the pending effects of the same instance whose issuer_ref is
// the `ref` parameter and that were requested before it, in the order of the requests.
std::vector<PendingIntent> find_cancelled_intents(const InstanceState&, const PendingIntent& cancel);
// Returns the receipt of a timer or approval that an effect sys/cancel@1 has cancelled.
ReceiptArrived make_cancelled_receipt(const std::string& intent);
// Returns the receipt of an effect sys/cancel@1. `cancelled` is the number of cancelled timers and approvals. Jobs and
// flows are not counted, because they may have ended before and report their own end.
ReceiptArrived make_cancel_receipt(const std::string& intent, std::size_t cancelled);

// A reason why a manifest cannot be applied now.
struct ApplyObstacle {
  InstanceId instance;
  std::uint64_t inbox_size = 0;
  std::vector<std::string> published_intents;
  std::vector<std::string> unpublished_intents;
};
std::vector<ApplyObstacle> find_apply_obstacles(const DeploymentState&);
std::string join(const std::vector<ApplyObstacle>&);

using StepEngine = std::function<StepAnswer(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&)>;

// Result of a replay. It ends at the first step with another output and at the first fact that does not fit.
struct StepReplayResult {
  std::uint64_t steps = 0;  // number of repeated steps
  std::optional<OutputMismatchFound> mismatch;
  std::optional<WorkflowProblem> problem;  // a fact that does not fit
};
// Replays facts one by one: folds each fact into the state, and executes each step again to compare its output.
class ReplayVerifier {
 public:
  ReplayVerifier(DeploymentState& deployment, const ManifestCatalog& catalog, StepEngine engine)
      : deployment_(deployment), catalog_(catalog), engine_(std::move(engine)) {}
  // Returns false if an output differs or a fact does not fit. The replay must then not be continued.
  bool fold_one(const WorkflowFact&);
  const StepReplayResult& result() const { return result_; }

 private:
  Result<StepRequest> build_request(const InstanceId&);
  void repeat_step(const InstanceId&, const std::string& output, std::uint64_t height);

  DeploymentState& deployment_;
  const ManifestCatalog& catalog_;
  StepEngine engine_;
  StepReplayResult result_;
  std::optional<std::string> last_state_;             // canonical state that the latest step returned
  std::map<InstanceId, std::string> spilled_states_;  // kept here, because their blobs may have been deleted
};
StepReplayResult verify_replay(DeploymentState&, const ManifestCatalog&, const std::vector<WorkflowFact>&,
                               const StepEngine&);

}  // namespace mycojobs
