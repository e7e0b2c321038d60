// A deployment of workflows in memory. It is loaded from snapshot and journal, and changed by commits that name the
// height that was read. Not thread-safe.
//
//   load() --> decide(), decide() ... --> commit()
//     conflict: another process has committed; the decisions are lost, and load() reads the deployment again
//
// Long states are stored in blobs ("spilled"). build_step_request() reads the blob of the state that a step needs, and
// checks the hash.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/workflow_store.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

// A manifest that an operator applied, with its code. The effects of its instances run in the name of the owner. Stored
// as JSON: {manifest, code, owner}.
struct AppliedManifest {
  ManifestRef manifest;
  Id owner = 0;
};
struct ManifestText {
  std::string text;
  ManifestRef manifest;                   // null if there are problems
  std::vector<DocumentProblem> problems;  // all problems, with their paths
};
ManifestText serialize_manifest(const nlohmann::json& manifest, const CodeFiles& code, Id owner);
Result<AppliedManifest> parse_applied_manifest(const std::string& text);
// Reads a manifest from the store. Errors: not_found; invalid (the stored content has another hash, or cannot be
// parsed).
Result<AppliedManifest> load_manifest(WorkflowStore&, Id context, const std::string& deployment,
                                      const std::string& hash);

// Calls visit() for each fact after the height `after`, in order, until visit() returns false or an error. Errors:
// unavailable; invalid (a fact is missing or cannot be decoded; the message names the height); errors of visit().
Result<void> for_each_fact(WorkflowStore&, Id context, const std::string& deployment, std::uint64_t after,
                           const std::function<Result<bool>(WorkflowFact)>& visit);

// Indexes over the state of a deployment, so that no query scans all instances. before_fact() and after_fact() must be
// called for every fact.
class DeploymentIndex {
 public:
  DeploymentIndex(const DeploymentState&, std::size_t max_inbox_events);
  DeploymentIndex() = default;
  void before_fact(const DeploymentState&, const WorkflowFact&);  // Called before the fact is folded into the state.
  void after_fact(const DeploymentState&, const WorkflowFact&);   // Called after the fact was folded into the state.

  // Returns the intents that are not published yet, in the order in which the steps requested them.
  const std::map<std::pair<std::uint64_t, std::uint64_t>, std::string>& unpublished_intents() const {
    return unpublished_intents_;
  }
  // Pairs of time in ms and intent.
  const std::set<std::pair<std::uint64_t, std::string>>& timers() const { return timers_; }
  // Returns the pending intent of a job or flow, or an empty text.
  std::string find_intent(const std::string& effect_ref) const;
  const std::map<std::string, std::string>& effect_refs() const { return effect_refs_; }
  // Returns the instances whose inboxes are full. An instance is removed when half of its inbox has been processed.
  const std::set<InstanceId>& full_instances() const { return full_instances_; }

 private:
  void update_full_instances(const DeploymentState&, const InstanceId&);
  void add(const PendingIntent&);
  void remove(const PendingIntent&);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> unpublished_intents_;
  std::set<std::pair<std::uint64_t, std::string>> timers_;
  std::map<std::string, std::string> effect_refs_;  // intents by the jobs and flows that perform their effects
  std::set<InstanceId> full_instances_;
  std::size_t max_inbox_events_ = kMaxCellInboxEntries;
};
const PendingIntent* find_pending(const DeploymentState&, const std::string& intent);

// Executes a step; implemented by workflow::EnginePool::step(). Called from several threads at a time. An error means
// that the step was not executed, for example because its process could not be started.
using StepRunner = std::function<Result<StepAnswer>(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&)>;

class LoadedDeployment {
 public:
  // Loads from the latest readable snapshot, or from the first fact if there is none or from_beginning is set. A
  // deployment without facts has an empty state. Errors: unavailable; invalid (a fact cannot be applied; the message
  // names the height); not_found (a manifest is missing).
  static Result<LoadedDeployment> load(WorkflowStore&, Id context, const std::string& name,
                                       bool from_beginning = false);
  // Sets the inbox size at which an instance is full. The store rejects further posts to a full instance. Entries
  // already in the inbox, and events from instances of this deployment, are accepted in any case: an accepted entry is
  // never rejected later, and a full instance does not block the others.
  void set_max_inbox_events(std::size_t max) { index_ = DeploymentIndex(state_, max); }

  const std::string& name() const { return name_; }
  const DeploymentState& state() const { return state_; }
  const DeploymentIndex& index() const { return index_; }
  const ManifestCatalog& catalog() const { return catalog_; }
  Id owner_of(const std::string& hash) const;  // owner of a manifest; 0 if the manifest is unknown
  // Loads a manifest into the catalog unless the catalog has it.
  Result<void> add_manifest(WorkflowStore&, const std::string& hash);
  // Adds a manifest to the catalog unless the catalog has it.
  void add_manifest(AppliedManifest);

  // Decides and folds the resulting facts into the state; commit() stores them. Errors are those of mycojobs::decide();
  // the state is then unchanged.
  Result<void> decide(const WorkflowInput&);
  std::size_t pending_bytes() const { return pending_bytes_; }  // size of the facts and blobs that wait for commit()
  // Returns the request for the step that processes the next event in the inbox of an instance. Reads a spilled state
  // from its blob.
  Result<StepRequest> build_step_request(WorkflowStore&, const InstanceId&);
  std::size_t pending_facts() const { return pending_facts_.size(); }
  // Marks an inbox entry as processed. The next commit() removes the entry.
  void mark_processed(std::string entry_id) { processed_entries_.push_back(std::move(entry_id)); }
  // Commits all decisions. If `alone` is set, the commit fails unless the inbox is empty. If `expected_applies` has a
  // value, the commit applies a manifest and has the condition of commit_manifest(). After an error, including conflict
  // (another process has committed), this object must not be used again; load the deployment again.
  Result<void> commit(WorkflowStore&, std::uint64_t due_ms, bool alone = false,
                      const std::optional<std::string>& expected_applies = std::nullopt);

  std::uint64_t facts_since_snapshot() const { return state_.height - snapshot_height_; }
  // Sets the maximum size of a snapshot. For a larger snapshot decide() fails with too_large; the caller then calls
  // skip_snapshot(), which defers the next attempt by a full snapshot interval.
  void set_max_snapshot_bytes(std::size_t bytes) { max_snapshot_bytes_ = bytes; }
  void skip_snapshot() { snapshot_height_ = state_.height; }
  // Deletes blobs that are neither the state of an instance nor part of the latest snapshot (docs/decisions/0020). Call
  // it after a commit, without decisions since then. A concurrent commit of another process is not an error: the next
  // collection deletes the blobs. needs_collection() returns true again after at least `min_bytes` bytes of
  // blobs were written.
  Result<void> collect_garbage_blobs(WorkflowStore&, std::uint64_t min_bytes);
  bool needs_collection() const { return written_blob_bytes_ >= collection_threshold_; }

 private:
  Result<void> fold_all(WorkflowStore&, std::uint64_t after);
  Result<void> fold_one(const WorkflowFact&);
  Result<void> load_manifests(WorkflowStore&);

  Id context_ = 0;
  std::string name_;
  DeploymentState state_;
  DeploymentIndex index_;
  ManifestCatalog catalog_;
  std::map<std::string, Id> owners_;
  std::uint64_t stored_height_ = 0;    // height of the journal in the store
  std::uint64_t snapshot_height_ = 0;  // height of the latest known snapshot
  std::string latest_snapshot_;
  std::set<std::string> snapshot_blobs_;    // blobs that belong to the latest snapshot
  std::vector<std::string> pending_facts_;  // encoded facts that are not committed yet
  std::map<std::string, std::string> pending_blobs_;
  std::size_t pending_bytes_ = 0;  // size of pending_facts_ and pending_blobs_
  // Bytes of blobs: written since the last collection, and the threshold for the next one.
  std::uint64_t written_blob_bytes_ = 0, collection_threshold_ = 0;
  std::size_t max_snapshot_bytes_ = kMaxSnapshotBytes;
  std::vector<std::string> processed_entries_;
  std::string new_snapshot_, applied_manifest_;
  std::optional<std::set<InstanceId>> stored_full_instances_;  // full instances as stored; no value if unknown
};

}  // namespace mycojobs
