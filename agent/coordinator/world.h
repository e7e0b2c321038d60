// A world of workflows in memory: read from its snapshot and journal, changed by commits at the height that was read.
// One thread.
//
//   load() --> decide(), decide() ... --> commit()        somebody was faster: load() again, what was decided is gone
//   spilled states lie in blobs: request_of() brings the one that it needs, and checks its hash
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "domain/workflow_decide.h"
#include "mycojobs/workflows.h"

namespace mycojobs {

// What an operator has applied: a manifest with its code, and as whom its effects run. As text it is what the store
// keeps: JSON {manifest, code, owner}.
struct AppliedManifest {
  ManifestRef manifest;
  Id owner = 0;
};
struct ManifestText {
  std::string text;
  ManifestRef manifest;               // null: there are problems
  std::vector<PlanProblem> problems;  // all, with their paths
};
ManifestText manifest_text(const nlohmann::json& manifest, const CodeFiles& code, Id owner);
Result<AppliedManifest> read_applied(const std::string& text);
// Error invalid: it is stored with other content.
Result<AppliedManifest> stored_manifest(WorkflowStore&, Id context, const std::string& world, const std::string& hash);

// Each fact of a world from a height on (after it), until `see` answers false or an error. Errors: its own;
// unavailable; invalid (a fact cannot be read or is gone: names the height).
Result<void> each_fact(WorkflowStore&, Id context, const std::string& world, std::uint64_t after,
                       const std::function<Result<bool>(WorkflowFact)>& see);

// What must be found without a look at every instance. Follows the facts.
class WorldIndex {
 public:
  WorldIndex(const WorldState&, std::size_t most_mail);
  WorldIndex() = default;
  void before(const WorldState&, const WorkflowFact&);  // it is about to be folded in
  void after(const WorldState&, const WorkflowFact&);   // it was

  // Intents that nobody has carried out yet, in the order in which they were asked for.
  const std::map<std::pair<std::uint64_t, std::uint64_t>, std::string>& queued() const { return queued_; }
  const std::set<std::pair<std::uint64_t, std::string>>& timers() const { return timers_; }  // moment in ms, intent
  std::string intent_of(const std::string& carrier) const;  // empty: it carries nothing that waits
  const std::map<std::string, std::string>& carriers() const { return carriers_; }
  // Instances that have all the mail that they may; until half of it is worked off.
  const std::set<CellId>& full() const { return full_; }

 private:
  void count_mail(const WorldState&, const CellId&);
  void add(const PendingIntent&);
  void remove(const PendingIntent&);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> queued_;
  std::set<std::pair<std::uint64_t, std::string>> timers_;
  std::map<std::string, std::string> carriers_;  // job or flow -> intent
  std::set<CellId> full_;
  std::size_t most_mail_ = kMaxCellMail;
};
const PendingIntent* find_pending(const WorldState&, const std::string& intent);

// Takes a step: workflow::Engines::step(). Called from several threads at once. Errors say nothing of the step.
using StepTaker = std::function<Result<StepAnswer>(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&)>;

class LoadedWorld {
 public:
  // From the latest snapshot that can be read, else from the beginning; from_beginning: without any snapshot. A world
  // without facts is empty. Errors: unavailable; invalid (a fact that does not fit: names the height), not_found (a
  // manifest is gone).
  static Result<LoadedWorld> load(WorkflowStore&, Id context, const std::string& name, bool from_beginning = false);
  // From so much mail on an instance is full: senders are refused. What waits already, and what others of this world
  // send to it, comes in all the same: nothing that was taken is refused later, and nothing holds others up.
  void limit_mail(std::size_t most) { index_ = WorldIndex(state_, most); }

  const std::string& name() const { return name_; }
  const WorldState& state() const { return state_; }
  const WorldIndex& index() const { return index_; }
  const ManifestCatalog& catalog() const { return catalog_; }
  Id owner_of(const std::string& manifest_hash) const;
  Result<void> know(WorkflowStore&, const std::string& manifest_hash);
  void know(AppliedManifest);  // unless it is known

  // Folds it in; what it comes to waits for commit(). Errors are decide()'s: nothing has changed.
  Result<void> decide(const WorkflowInput&);
  std::size_t news_bytes() const { return news_bytes_; }  // of facts and blobs that wait
  // The request for the next mail of a cell, with its state from its blob if need be.
  Result<StepRequest> request_of(WorkflowStore&, const CellId&);
  std::size_t news() const { return facts_.size(); }
  void done(std::string mail_id) { done_.push_back(std::move(mail_id)); }
  // alone: only if nothing waits for it. applies: as of commit_manifest(). After an error (conflict: somebody else was
  // faster) this world is of no more use: load it again.
  Result<void> commit(WorkflowStore&, std::uint64_t due_ms, bool alone = false,
                      const std::optional<std::string>& applies = std::nullopt);

  std::uint64_t since_snapshot() const { return state_.height - snapshot_height_; }
  // A snapshot of more is refused (too_large); not now: it is asked for again after as many facts as after one.
  void limit_snapshot(std::size_t bytes) { most_snapshot_ = bytes; }
  void skip_snapshot() { snapshot_height_ = state_.height; }
  // Blobs that no instance has for its state now, nor the latest snapshot for one, go: docs/decisions/0020. After a
  // commit, with nothing decided since. Somebody who was faster is no error: the next collection finds them.
  // least: bytes of blobs that are written before another one is worth it.
  Result<void> collect(WorkflowStore&, std::uint64_t least);
  bool wants_collection() const { return written_ >= collect_at_; }

 private:
  Result<void> fold_all(WorkflowStore&, std::uint64_t after);
  Result<void> fold_one(const WorkflowFact&);
  Result<void> know_all(WorkflowStore&);

  Id context_ = 0;
  std::string name_;
  WorldState state_;
  WorldIndex index_;
  ManifestCatalog catalog_;
  std::map<std::string, Id> owners_;
  std::uint64_t base_ = 0;             // height in the store
  std::uint64_t snapshot_height_ = 0;  // of the latest that we know
  std::string latest_snapshot_;
  std::set<std::string> pinned_;    // blobs that the latest snapshot names
  std::vector<std::string> facts_;  // decided, not committed
  std::map<std::string, std::string> blobs_;
  std::size_t news_bytes_ = 0;                  // of both
  std::uint64_t written_ = 0, collect_at_ = 0;  // bytes of blobs: since the last collection, until the next
  std::size_t most_snapshot_ = kMaxSnapshotBytes;
  std::vector<std::string> done_;
  std::string snapshot_, applied_;
  std::optional<std::set<CellId>> stored_full_;  // as the store has them; nothing: not known
};

}  // namespace mycojobs
