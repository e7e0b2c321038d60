// A deployment of workflows in memory. It is loaded from snapshot and journal, and changed by commits that name the
// height that was read. Not thread-safe.
//
//   load() --> decide(), decide() ... --> commit()
//     conflict: another process has committed; the decisions are lost, and load() reads the deployment again
//
// Long states are stored in blobs ("spilled"). build_step_request() reads the blob of the state that a step needs, and
// checks the hash.
//
// Memory has the instances with work, and the instances of a bounded cache (cell_cache.h). Other instances are read
// from the latest snapshot when a decision or a fact needs them; the facts since the snapshot are then applied to the
// instance alone (docs/decisions/0046). Removing an instance from memory therefore writes nothing.
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
#include "workflows/cell_index.h"
#include "workflows/deployment/cell_cache.h"
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

inline constexpr std::uint32_t kMaxFactsBatch = 1000;  // facts that are read together

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

// Number of instances in a part of a snapshot.
inline constexpr std::size_t kMaxSnapshotPartCells = 64;

// Instances to be read: their heights of facts since the snapshot with this index.
struct CellQuery {
  std::shared_ptr<const CellIndex> index;
  std::map<InstanceId, std::vector<std::uint64_t>> cells;
};
using FoundCells = std::map<InstanceId, std::optional<InstanceState>>;  // no value: the instance does not exist
// Reads instances from a snapshot and the facts since. Used by any thread with a store and a reader of its own. Errors:
// unavailable; not_found and invalid (a page is missing, for example because a later snapshot has replaced it).
Result<FoundCells> read_cells(WorkflowStore&, Id context, const std::string& deployment, CellReader&, const CellQuery&);

struct LoadOptions {
  bool from_beginning = false;           // ignores snapshots
  std::string unreadable_snapshot = {};  // hash of a snapshot that is ignored
  CellCacheLimits cache = {};
};

class LoadedDeployment {
 public:
  // Loads from the latest readable snapshot, or from the first fact if there is none. A deployment without facts has an
  // empty state. The store must outlive the result. Errors: unavailable; invalid (a fact cannot be applied; the message
  // names the height); not_found (a manifest is missing).
  static Result<LoadedDeployment> load(WorkflowStore&, Id context, const std::string& name,
                                       const LoadOptions& options = {});
  // Sets the inbox size at which an instance is full. The store rejects further posts to a full instance. Entries
  // already in the inbox, and events from instances of this deployment, are accepted in any case: an accepted entry is
  // never rejected later, and a full instance does not block the others.
  void set_max_inbox_events(std::size_t max) { index_ = DeploymentIndex(state_, max); }

  const std::string& name() const { return name_; }
  // The state without instances that are not in memory.
  const DeploymentState& state() const { return state_; }
  // Reads instances that are not in memory. They stay in memory until the next commit. Errors: unavailable; conflict (a
  // page of the snapshot is missing: load the deployment again, without this snapshot if it is still the latest).
  Result<void> load_cells(const std::set<InstanceId>&);
  // Returns whether load_cells() has failed, so that the input of a failed decision must be decided again.
  bool has_load_error() const { return has_load_error_; }
  // The parts of load_cells(), so that another thread can read: returns the query for those of the instances that are
  // not known; adds the result, unless the instance has been read or has changed since; returns whether an instance is
  // in memory, or was searched since the last commit and does not exist.
  CellQuery make_query(const std::set<InstanceId>&) const;
  void add_cells(const CellQuery&, FoundCells);
  bool knows_cell(const InstanceId& id) const { return state_.instances.contains(id) || absent_cells_.contains(id); }
  Result<void> load_all_cells();
  // Returns an instance, or nullptr if it does not exist. The errors are those of load_cells().
  Result<const InstanceState*> find_instance(const InstanceId&);
  // Calls visit() for the instances after `after`, in the order of InstanceId, until visit() returns false. Pages
  // without an instance of the status are skipped.
  Result<void> visit_instances(const std::optional<InstanceId>& after, std::optional<InstanceStatus>,
                               const std::function<bool(const InstanceState&)>& visit);
  // Returns the number of instances of each workflow, by manifest and status.
  const std::map<std::string, std::map<std::string, CellCounts>>& cell_counts() const { return counts_; }
  // Hash of the latest snapshot, if one of its pages could not be read; else empty.
  const std::string& unreadable_snapshot() const { return unreadable_snapshot_; }
  const DeploymentIndex& index() const { return index_; }
  const ManifestCatalog& catalog() const { return catalog_; }
  Id owner_of(const std::string& hash) const;  // owner of a manifest; 0 if the manifest is unknown
  // Loads a manifest into the catalog unless the catalog has it.
  Result<void> add_manifest(WorkflowStore&, const std::string& hash);
  // Adds a manifest to the catalog unless the catalog has it.
  void add_manifest(AppliedManifest);

  // Decides and folds the resulting facts into the state; commit() stores them. Errors are those of mycojobs::decide()
  // and load_cells(); the state is then unchanged. For TakeSnapshot, the whole snapshot is built first.
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
  // Returns whether all instances are in memory until the next snapshot, since the latest snapshot has no index.
  bool needs_first_index() const { return keeps_all_cells_ && !has_skipped_snapshot_; }
  // Sets the maximum size of a snapshot. For a larger snapshot decide() fails with too_large; the caller then calls
  // skip_snapshot(), which defers the next attempt. The interval between attempts doubles with each refusal, since
  // an attempt reads all changed instances.
  void set_max_snapshot_bytes(std::size_t bytes) { max_snapshot_bytes_ = bytes; }
  void skip_snapshot() {
    snapshot_height_ = state_.height;
    has_skipped_snapshot_ = true;
    snapshot_interval_factor_ *= 2;
  }
  std::uint64_t snapshot_interval_factor() const { return snapshot_interval_factor_; }
  // Starts a snapshot. Errors: conflict (an instance can take a step, or an effect is not published); too_large (as far
  // as the sizes are known).
  Result<void> start_snapshot(const Sample&);
  bool is_building_snapshot() const { return build_ != nullptr; }
  // Adds the next changed instances to the snapshot. Returns whether the snapshot is complete; the next commit() then
  // stores the snapshot. Errors: too_large; those of load_cells(). After an error the snapshot is dropped.
  Result<bool> build_snapshot_part(std::size_t max_cells = kMaxSnapshotPartCells);
  std::size_t unwritten_snapshot_bytes() const;
  // Stores blobs of the parts so far that no later part replaces, without a fact. REQUIRES: all decisions were
  // committed. The blobs belong to no snapshot before the commit; the deployment is due, so that the next leader
  // deletes them after a crash.
  Result<void> write_snapshot_blobs(WorkflowStore&);
  bool has_replaced_blobs() const { return !replaced_blobs_.empty(); }  // The next commit deletes some of them.
  // Deletes blobs that are neither the state of an instance nor part of the latest snapshot (docs/decisions/0020). Call
  // it after a commit, without decisions since then. A concurrent commit of another process is not an error: the next
  // collection deletes the blobs. needs_collection() returns true again after at least `min_bytes` bytes of
  // blobs were written.
  Result<void> collect_garbage_blobs(WorkflowStore&, std::uint64_t min_bytes);
  bool needs_collection() const { return written_blob_bytes_ >= collection_threshold_; }
  // Returns whether a collection after a snapshot is cheap and can free blobs.
  bool should_collect_after_snapshot() const;

 private:
  struct SnapshotBuild;
  LoadedDeployment(WorkflowStore&, Id context, const std::string& name, const CellCacheLimits&);
  Result<void> load_snapshot(const std::string& hash, std::uint64_t height);
  Result<void> fold_all(WorkflowStore&, std::uint64_t after);
  Result<void> fold_batch(std::vector<WorkflowFact>&);
  Result<void> fold_one(const WorkflowFact&);
  Result<void> load_manifests(WorkflowStore&);
  // Cells.
  void add_cell(InstanceState);
  void update_cell(const InstanceId&, std::uint64_t height);
  bool can_forget(const InstanceState&) const;
  void forget_excess_cells();
  tl::unexpected<Error> page_error(Error);
  Result<WorkflowDecision> decide_loaded(const WorkflowInput&);
  Result<void> add_decision(WorkflowDecision);
  void count(const InstanceState&, int sign);
  // Snapshots.
  Result<void> take_snapshot(const Sample&);
  Result<void> check_known_size() const;
  Result<void> check_snapshot_size(std::uint64_t bytes) const;
  Result<CellChanges> next_changes(std::size_t max_cells);
  Result<bool> add_snapshot_part(std::size_t max_cells);
  Result<void> finish_snapshot();
  Result<std::set<std::string>> find_open_blobs();
  Result<void> write_blobs(WorkflowStore&, std::map<std::string, std::string> blobs);
  void drop_snapshot();
  void start_index(WorkflowBlob root);
  Result<std::set<std::string>> list_snapshot_blobs(std::uint64_t& state_bytes);

  WorkflowStore* store_ = nullptr;
  Id context_ = 0;
  std::string name_;
  DeploymentState state_;
  DeploymentIndex index_;
  ManifestCatalog catalog_;
  std::map<std::string, Id> owners_;
  std::uint64_t stored_height_ = 0;    // height of the journal in the store
  std::uint64_t snapshot_height_ = 0;  // height of the latest known snapshot
  std::string latest_snapshot_, unreadable_snapshot_;
  std::shared_ptr<const CellIndex> cells_ = std::make_shared<CellIndex>();  // instances of the latest snapshot
  CellReader cell_reader_;
  CellCache cache_;
  // Heights of the facts since the latest snapshot, by instance.
  std::map<InstanceId, std::vector<std::uint64_t>> dirty_cells_;
  std::map<std::string, std::map<std::string, CellCounts>> counts_;  // as returned by cell_counts()
  std::shared_ptr<SnapshotBuild> build_;                             // the snapshot that is being built
  std::set<InstanceId> absent_cells_;                                // instances that were searched and do not exist
  bool has_skipped_snapshot_ = false, has_load_error_ = false;
  std::uint64_t snapshot_interval_factor_ = 1;  // 2 to the number of refused snapshots since the latest one
  bool keeps_all_cells_ = false;                // cells_ is empty, and all instances are in memory
  std::set<std::string> used_manifests_;        // manifests of instances that were in memory
  // Pages and states of a snapshot without an index, and blobs of the snapshot before the new one, to be deleted after
  // the commit.
  std::set<std::string> snapshot_pages_, snapshot_states_, replaced_blobs_;
  std::uint64_t pending_page_bytes_ = 0;               // size of the pages in pending_blobs_
  std::vector<std::string> pending_facts_;             // encoded facts that are not committed yet
  std::map<InstanceId, std::string> pending_changes_;  // heights of these facts, as in DeploymentCommit::changes
  std::map<std::string, std::string> pending_blobs_;
  std::size_t pending_bytes_ = 0;  // size of pending_facts_ and pending_blobs_
  // Bytes of blobs: written since the last collection, and the threshold for the next one.
  std::uint64_t written_blob_bytes_ = 0, collection_threshold_ = 0;
  std::size_t max_snapshot_bytes_ = kMaxSnapshotBytes;
  std::vector<std::string> processed_entries_;
  std::string new_snapshot_, applied_manifest_;
  std::optional<std::set<InstanceId>> stored_full_instances_;  // full instances as stored; no value if unknown
};

// Reads one instance without loading the deployment: its page in the latest snapshot, and the later facts of the
// instance. Returns no value if the instance does not exist. Errors: those of LoadedDeployment::load().
Result<std::optional<InstanceState>> read_instance(WorkflowStore&, Id context, const std::string& deployment,
                                                   const InstanceId&);

}  // namespace mycojobs
