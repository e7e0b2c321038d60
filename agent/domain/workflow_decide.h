// What follows: decide(world, input) -> facts, blobs, effects to publish. Pure: time and entropy come with the input.
// The caller writes blobs, then the facts in one atomic step fenced by Decision::base, then publishes; who is slower or
// dies loses the decision, and decides again. Publishing is repeated from to_publish() until it is a fact.
// Source: seed 003, 4; the invariants of workflows.md, by number.
//
//   EventArrived --> routed by the manifest in force, in its order; keyed; a missing cell begins with null     (2, 8,
//   11) next_cells() --> request_of() --> engine --> StepDone                                                      (9)
//   StepDone     --> checked, then state, intents and derived events, or the instance fails                    (1, 2,
//   3) to_publish() --> outside --> EffectCarried                                                                 (10)
//   ReceiptArrived --> admitted, refused, a fault, a repeat or unknown                                         (4 - 7)
//   ApplyManifest, TakeSnapshot, OutputDiffers, RemoveCell, CancelCell                                         (12 -
//   14)
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

#include "domain/workflow_manifest.h"
#include "domain/workflow_state.h"
#include "domain/workflow_step.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct EventArrived {  // from outside
  std::string schema;
  std::string value;  // JSON or CBOR
  ValueForm form = ValueForm::from_json;
  std::string source = {};  // for people: actor:7
};
struct StepDone {
  CellId cell;
  MailId mail;  // the one that the request was made of
  StepAnswer answer;
};
struct EffectCarried {
  std::string intent, carrier;
};
struct ReceiptArrived {
  std::string intent;
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;  // JSON or CBOR; of the effect's receipt schema; status not ok: of sys/EffectFailure@1
  ValueForm form = ValueForm::from_json;
  std::string module, entrypoint;  // of the executor; empty: not known
  std::string refused;             // why the signature does not hold; empty: it was checked, and holds
};
struct ApplyManifest {
  std::string hash;  // of a manifest in the catalog
};
struct TakeSnapshot {};
struct OutputDiffers {  // verify_replay() found it
  CellId cell;
  std::uint64_t height = 0;
};
struct RemoveCell {  // a failed instance
  CellId cell;
  std::string by;
};
struct CancelCell {  // whoever operates it ends it: it fails as cancelled
  CellId cell;
  std::string by, reason;  // reason: may be empty
};
struct WorkflowInput {
  Sample sample;
  std::variant<EventArrived, StepDone, EffectCarried, ReceiptArrived, ApplyManifest, TakeSnapshot, OutputDiffers,
               RemoveCell, CancelCell>
      what;
};

struct WorkflowBlob {
  std::string hash, bytes;
  bool operator==(const WorkflowBlob&) const = default;
};
struct EffectToPublish {
  CellId cell;
  std::string workflow_hash;
  PendingIntent pending;
};
struct WorkflowDecision {
  std::uint64_t base = 0;  // the height that it was decided at
  std::vector<WorkflowFact> facts;
  std::vector<WorkflowBlob> blobs;       // spilled states, pages of a snapshot; before the facts
  std::vector<EffectToPublish> publish;  // once the facts are durable
  std::vector<CellId> ready;             // who has mail now, in the order in which it came
};
inline constexpr std::size_t kMaxSnapshotBytes = std::size_t{2} << 30;  // in pages: workflow_snapshot.h
struct WorkflowRules {
  std::size_t inline_state_bytes = 64U << 10;  // a longer state is a blob
  std::size_t max_state_bytes = kMaxStateBytes;
  std::size_t max_mail = 10'000;    // of one instance
  std::size_t max_derived = 4'096;  // deliveries of one step
  // Of events that steps emit; a loop ends there, by the failure of the step that would go on: EventIn::depth, what
  // waits for one instance, instances that have something to do.
  std::uint64_t max_depth = 1'000;
  std::size_t max_derived_mail = 100'000, max_ready = 1'000'000;
  // Of one instance: effects that it waits for, and the bytes of their parameters. Who asks for more fails.
  std::size_t max_pending = 10'000, max_pending_bytes = 64U << 20;
  std::size_t max_snapshot_bytes = kMaxSnapshotBytes;
};

// Errors; each changes nothing and is not journaled:
//   invalid      an event or key that its schema does not allow (2); an event that only the system may send
//   not_found    no workflow takes the event; an intent that nobody asked for ("unknown intent", 6); no such instance
//   conflict     apply or snapshot now: lists why (14); a step of another mail than the next; a receipt that came
//   before too_large    an instance has too much mail, a snapshot too many bytes
// A repeat of a settled receipt is no error: no facts (6). So is the manifest that is in force already.
Result<WorkflowDecision> decide(const WorldState&, const ManifestCatalog&, const WorkflowInput&,
                                const WorkflowRules& = {});
// Folds the facts of a decision in. Error internal: one does not fit; the world is then as it was.
Result<void> commit(WorldState&, const WorkflowDecision&);

// Who may take a step, in round-robin order: not those that run.
std::vector<CellId> next_cells(const WorldState&, std::size_t most, const std::set<CellId>& running = {});
// The request for the next mail of an instance. Errors: not_found (no mail, no such code), unavailable (the blob).
Result<StepRequest> request_of(const WorldState&, const ManifestCatalog&, const CellId&);
// Asked for and not yet known to be carried out, in the order in which it was asked for.
std::vector<EffectToPublish> to_publish(const WorldState&);

// Carriers that are neither a job nor a flow.
inline constexpr const char *kTimerCarrier = "timer", *kApprovalCarrier = "approval";
// When time settles a timer or an approval that is published, Unix milliseconds; 0: never.
std::uint64_t settled_by_time(const PendingIntent&);

// Effects that an effect sys/cancel@1 is about, in the order in which they were asked for: those of its instance with
// that ref, asked for before it, that wait.
std::vector<PendingIntent> cancelled_by(const CellState&, const PendingIntent& cancel);
// Of a timer or an approval that nothing outside carries: its receipt; and that of the effect that cancels so many.
// Jobs and flows do not count: how they end is theirs to say, and they may have ended before.
ReceiptArrived cancelled_receipt(const std::string& intent);
ReceiptArrived cancel_receipt(const std::string& intent, std::size_t cancelled);

// Why a manifest cannot be applied now.
struct ApplyObstacle {
  CellId cell;
  std::uint64_t mail = 0;            // events and receipts that wait
  std::vector<std::string> pending;  // intents in flight
  std::vector<std::string> queued;   // intents not yet published
};
std::vector<ApplyObstacle> obstacles(const WorldState&);
std::string join(const std::vector<ApplyObstacle>&);

using WorkflowEngine = std::function<StepAnswer(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&)>;

// Folds the facts into the world, and takes each step again. Answers the height of the first whose output differs.
struct ReplayVerdict {
  std::uint64_t steps = 0;
  std::optional<OutputDiffers> differs;
  std::optional<WorkflowProblem> problem;  // a fact that does not fit: ends there
};
// One fact after the other, into the world.
class ReplayCheck {
 public:
  ReplayCheck(WorldState& world, const ManifestCatalog& catalog, WorkflowEngine engine)
      : world_(world), catalog_(catalog), engine_(std::move(engine)) {}
  // False: it differs, or does not fit; nothing more is to be folded then.
  bool fold_one(const WorkflowFact&);
  const ReplayVerdict& verdict() const { return verdict_; }

 private:
  Result<StepRequest> request_for(const CellId&);
  void take_again(const CellId&, const std::string& output, std::uint64_t height);

  WorldState& world_;
  const ManifestCatalog& catalog_;
  WorkflowEngine engine_;
  ReplayVerdict verdict_;
  std::optional<std::string> last_;       // the state that the last step gave, as the journal has it
  std::map<CellId, std::string> states_;  // spilled ones: their blobs may have been collected long ago
};
ReplayVerdict verify_replay(WorldState& from, const ManifestCatalog&, const std::vector<WorkflowFact>&,
                            const WorkflowEngine&);

}  // namespace mycojobs
