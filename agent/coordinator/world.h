// A world of workflows in memory: read from its snapshot and journal, changed by commits at the height that was read.
// One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
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
// All problems, with their paths. owner: the actor whose jobs the effects become.
struct ManifestText {
  std::string text, hash;  // of the manifest, not of the text
  ManifestRef manifest;    // null: there are problems
  std::vector<PlanProblem> problems;
};
ManifestText manifest_text(const nlohmann::json& manifest, const CodeFiles& code, Id owner);

class LoadedWorld {
 public:
  // From the latest snapshot that can be read, else from the beginning; from_beginning: without any snapshot. A world
  // without facts is empty. Errors: unavailable; invalid (a fact that does not fit: names the height), not_found (a
  // manifest is gone).
  static Result<LoadedWorld> load(WorkflowStore&, Id context, const std::string& name, bool from_beginning = false);
  // What others have committed since.
  Result<void> catch_up(WorkflowStore&);

  const std::string& name() const { return name_; }
  const WorldState& state() const { return state_; }
  const ManifestCatalog& catalog() const { return catalog_; }
  Id owner_of(const std::string& manifest_hash) const;
  Result<void> know(WorkflowStore&, const std::string& manifest_hash);

  // decide(), and folds it in; what it comes to waits for commit().
  Result<WorkflowDecision> decide(const WorkflowInput&);
  // The request for the next mail of a cell, with its state from its blob if need be.
  Result<StepRequest> request_of(WorkflowStore&, const CellId&);
  bool has_news() const { return !facts_.empty() || !done_.empty(); }
  std::size_t news() const { return facts_.size(); }
  void done(std::string mail_id) { done_.push_back(std::move(mail_id)); }
  // Error conflict: somebody else was faster, and this world is of no more use: load it again.
  Result<void> commit(WorkflowStore&, std::uint64_t due_ms);

 private:
  Result<void> fold_all(WorkflowStore&, std::uint64_t after);
  Result<void> know_all(WorkflowStore&);

  Id context_ = 0;
  std::string name_;
  WorldState state_;
  ManifestCatalog catalog_;
  std::map<std::string, Id> owners_;
  std::uint64_t base_ = 0;           // height in the store
  std::vector<WorkflowFact> facts_;  // decided, not committed
  std::map<std::string, std::string> blobs_;
  std::vector<std::string> done_;
  std::string snapshot_;
};

}  // namespace mycojobs
