// The instances of a LoadedDeployment that are not in memory: reading, forgetting, snapshots.
#include <algorithm>
#include <array>

#include "workflows/deployment/deployment.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxSnapshotCellsBatch = 512;  // cells that are read in one batch for a snapshot
// Facts of an instance since the snapshot, up to which the instance can be forgotten.
constexpr std::size_t kMaxReplayedFacts = 64;
// Facts are read together if at most this number of facts is between two of them.
constexpr std::uint64_t kMaxSkippedFacts = 50;

constexpr std::size_t kMaxAbsentCells = 4096;
constexpr int kMaxReadAttempts = 3;

// Applies the facts of an instance after its state in the snapshot. Error conflict: another snapshot was taken since.
Result<void> fold_later_facts(WorkflowStore& store, Id context, const std::string& deployment, InstanceFacts read,
                              const InstanceId& id, std::optional<InstanceState>& instance) {
  for (;;) {
    for (const auto& [height, bytes] : read.facts) {
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), deployment + ": height " + std::to_string(height));
      const std::vector<InstanceId> ids = affected_instances(*fact);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) continue;
      if (const auto problem = fold(instance, id, *fact)) return fail(Code::invalid, deployment + ": " + problem->text);
    }
    if (read.read_height >= read.height) return {};
    MJ_TRY(next, store.read_instance_facts(context, deployment, store_name(id), read.read_height));
    if (next.snapshot != read.snapshot) return fail(Code::conflict, "another snapshot was taken");
    if (next.read_height <= read.read_height)
      return fail(Code::invalid,
                  deployment + ": the fact at height " + std::to_string(read.read_height + 1) + " is missing");
    read = std::move(next);
  }
}

// Error conflict: the snapshot was replaced, or cannot be read for one instance.
Result<std::optional<InstanceState>> read_from_snapshot(WorkflowStore& store, Id context, const std::string& deployment,
                                                        const InstanceId& id) {
  MJ_TRY(read, store.read_instance_facts(context, deployment, store_name(id)));
  std::optional<InstanceState> instance;
  if (read.snapshot_height != 0) {
    const auto check = [](auto result) {
      if (!result && result.error().code != Code::unavailable) result.error().code = Code::conflict;
      return result;
    };
    MJ_TRY(bytes, check(store.blob(context, deployment, read.snapshot)));
    MJ_TRY(root, check(read_snapshot_root(read.snapshot, bytes)));
    if (root.has_pages || root.head.height + 1 != read.snapshot_height)
      return fail(Code::conflict, "the snapshot has no index, or is not the one of its height");
    CellReader reader(
        [&](const std::vector<std::string>& hashes) { return store.read_blobs(context, deployment, hashes); });
    MJ_TRY(rows, check(root.cells.find(reader, {id})));
    if (!rows.empty()) {
      MJ_TRY(decoded, check(decode_instance(rows.front())));
      instance = std::move(decoded);
    }
  }
  MJ_CHECK(fold_later_facts(store, context, deployment, std::move(read), id, instance));
  return instance;
}

}  // namespace

Result<std::optional<InstanceState>> read_instance(WorkflowStore& store, Id context, const std::string& deployment,
                                                   const InstanceId& id) {
  for (int attempt = 0; attempt < kMaxReadAttempts; ++attempt) {
    auto instance = read_from_snapshot(store, context, deployment, id);
    if (instance || instance.error().code != Code::conflict) return instance;
  }
  MJ_TRY(loaded, LoadedDeployment::load(store, context, deployment));
  MJ_TRY(found, loaded.find_instance(id));
  return found == nullptr ? std::optional<InstanceState>() : *found;
}

bool LoadedDeployment::can_forget(const InstanceState& instance) const {
  if (keeps_all_cells_ || !is_idle(instance)) return false;
  const auto dirty = dirty_cells_.find(instance.id);
  if (dirty == dirty_cells_.end()) return true;
  // A collection keeps only the states of the snapshot and of instances in memory.
  const bool has_new_blob = instance.state && instance.state->is_spilled();
  return !has_new_blob && dirty->second.size() <= kMaxReplayedFacts;
}

void LoadedDeployment::add_cell(InstanceState instance) {
  const InstanceId id = instance.id;
  add_instance(state_, std::move(instance));
  const InstanceState& added = state_.instances.at(id);
  if (can_forget(added)) cache_.add(added, dirty_cells_.contains(id));
}

void LoadedDeployment::update_cell(const InstanceId& id, std::uint64_t height) {
  std::vector<std::uint64_t>& heights = dirty_cells_[id];
  if (heights.empty() || heights.back() != height) heights.push_back(height);
  const auto instance = state_.instances.find(id);
  if (instance == state_.instances.end()) {
    absent_cells_.insert(id);
    return cache_.remove(id);
  }
  absent_cells_.erase(id);
  used_manifests_.insert(instance->second.manifest);
  if (can_forget(instance->second))
    cache_.add(instance->second, true);
  else
    cache_.remove(id);
}

// REQUIRES: all decisions were committed, since the facts of a forgotten instance are read from the store.
void LoadedDeployment::forget_excess_cells() {
  if (absent_cells_.size() > kMaxAbsentCells) absent_cells_.clear();
  for (const InstanceId& id : cache_.pop_excess()) forget_instance(state_, id);
}

tl::unexpected<Error> LoadedDeployment::page_error(Error error) {
  // Without a snapshot another load would have the same result, so the deployment must wait.
  if (error.code == Code::unavailable || latest_snapshot_.empty()) return tl::unexpected<Error>(std::move(error));
  unreadable_snapshot_ = latest_snapshot_;
  return fail(Code::conflict, name_ + ": the snapshot " + latest_snapshot_ + ": " + error.message);
}

namespace {

using HeightReceivers = std::map<std::uint64_t, std::vector<InstanceId>>;

// Calls visit() for each fact of these heights, in their order. Facts that are close to each other are read together.
Result<void> visit_facts(
    WorkflowStore& store, Id context, const std::string& deployment, const HeightReceivers& heights,
    const std::function<Result<void>(const WorkflowFact&, const std::vector<InstanceId>&)>& visit) {
  for (auto next = heights.begin(); next != heights.end();) {
    const std::uint64_t first = next->first;
    std::uint64_t last = first;
    for (auto row = next;
         row != heights.end() && row->first <= last + 1 + kMaxSkippedFacts && row->first < first + kMaxFactsBatch;
         ++row)
      last = row->first;
    MJ_TRY(read, store.read(context, deployment, first - 1, static_cast<std::uint32_t>(last - first + 1)));
    if (read.facts.empty())
      return fail(Code::invalid, deployment + ": the fact at height " + std::to_string(first) + " is missing");
    for (std::uint64_t height = first; height < first + read.facts.size() && next != heights.end(); ++height) {
      if (next->first != height) continue;
      auto fact = decode_workflow_fact(read.facts[height - first]);
      if (!fact) return fail(fact.error(), deployment + ": height " + std::to_string(height));
      MJ_CHECK(visit(*fact, next->second));
      ++next;
    }
  }
  return {};
}

}  // namespace

Result<FoundCells> read_cells(WorkflowStore& store, Id context, const std::string& deployment, CellReader& reader,
                              const CellQuery& query) {
  std::set<InstanceId> ids;
  FoundCells found;
  for (const auto& [id, heights] : query.cells) {
    ids.insert(id);
    found[id] = std::nullopt;
  }
  MJ_TRY(rows, query.index->find(reader, ids));
  for (const CellRow& row : rows) {
    MJ_TRY(instance, decode_instance(row));
    found[row.id] = std::move(instance);
  }
  HeightReceivers receivers;
  for (const auto& [id, heights] : query.cells)
    for (const std::uint64_t height : heights) receivers[height].push_back(id);
  const auto apply = [&](const WorkflowFact& fact, const std::vector<InstanceId>& cells) -> Result<void> {
    for (const InstanceId& id : cells)
      if (const auto problem = fold(found[id], id, fact)) return fail(Code::invalid, deployment + ": " + problem->text);
    return {};
  };
  MJ_CHECK(visit_facts(store, context, deployment, receivers, apply));
  return found;
}

CellQuery LoadedDeployment::make_query(const std::set<InstanceId>& ids) const {
  CellQuery query;
  query.index = cells_;
  for (const InstanceId& id : ids) {
    if (knows_cell(id)) continue;
    const auto dirty = dirty_cells_.find(id);
    query.cells[id] = dirty == dirty_cells_.end() ? std::vector<std::uint64_t>() : dirty->second;
  }
  return query;
}

void LoadedDeployment::add_cells(const CellQuery& query, FoundCells found) {
  if (query.index != cells_) return;
  for (const auto& [id, heights] : query.cells) {
    const auto dirty = dirty_cells_.find(id);
    const bool has_changed = heights != (dirty == dirty_cells_.end() ? std::vector<std::uint64_t>() : dirty->second);
    if (knows_cell(id) || has_changed) continue;
    std::optional<InstanceState>& instance = found[id];
    if (instance)
      add_cell(std::move(*instance));
    else
      absent_cells_.insert(id);
  }
}

Result<void> LoadedDeployment::load_cells(const std::set<InstanceId>& ids) {
  const CellQuery query = make_query(ids);
  if (query.cells.empty()) return {};
  auto found = read_cells(*store_, context_, name_, cell_reader_, query);
  has_load_error_ = has_load_error_ || !found;
  if (!found) return page_error(std::move(found).error());
  add_cells(query, std::move(*found));
  return {};
}

Result<void> LoadedDeployment::load_all_cells() {
  std::set<InstanceId> ids;
  const auto wants_all = [](const std::string&, const CellRange&) { return true; };
  auto listed = cells_->visit(cell_reader_, std::nullopt, wants_all, [&](const CellRow& row) -> Result<bool> {
    ids.insert(row.id);
    return true;
  });
  if (!listed) return page_error(std::move(listed).error());
  for (const auto& [id, heights] : dirty_cells_) ids.insert(id);
  return load_cells(ids);
}

Result<const InstanceState*> LoadedDeployment::find_instance(const InstanceId& id) {
  MJ_CHECK(load_cells({id}));
  return state_.find_instance(id);
}

// ---- lists ----

Result<void> LoadedDeployment::visit_instances(const std::optional<InstanceId>& after,
                                               std::optional<InstanceStatus> status,
                                               const std::function<bool(const InstanceState&)>& visit) {
  // Instances that differ from the snapshot are merged into its pages.
  std::set<InstanceId> changed;
  for (auto dirty = after ? dirty_cells_.upper_bound(*after) : dirty_cells_.begin(); dirty != dirty_cells_.end();
       ++dirty)
    changed.insert(dirty->first);
  if (keeps_all_cells_)
    for (const auto& [id, instance] : state_.instances)
      if (!after || *after < id) changed.insert(id);
  auto next = changed.begin();
  bool has_more = true;
  const auto visit_changed = [&](const InstanceId* end) -> Result<void> {
    for (; has_more && next != changed.end() && (end == nullptr || *next < *end); ++next) {
      MJ_TRY(instance, find_instance(*next));
      if (instance != nullptr && (!status || instance->status() == *status)) has_more = visit(*instance);
    }
    return {};
  };
  const auto wants = [&](const std::string&, const CellRange& range) {
    return !status || range.counts[static_cast<std::size_t>(*status)] > 0;
  };
  auto visited = cells_->visit(cell_reader_, after, wants, [&](const CellRow& row) -> Result<bool> {
    MJ_CHECK(visit_changed(&row.id));
    if (!has_more || changed.contains(row.id) || (status && row.status != *status)) return has_more;
    MJ_TRY(instance, decode_instance(row));
    return has_more = visit(instance);
  });
  if (!visited) return page_error(std::move(visited).error());
  return visit_changed(nullptr);
}

Result<std::map<std::string, std::map<std::string, CellCounts>>> LoadedDeployment::count_cells() {
  std::map<std::string, std::map<std::string, CellCounts>> counts;
  for (const auto& [workflow, cells] : cells_->workflows()) counts[workflow] = cells.counts;
  std::set<InstanceId> changed;
  for (const auto& [id, heights] : dirty_cells_) changed.insert(id);
  auto rows = cells_->find(cell_reader_, changed);
  if (!rows) return page_error(std::move(rows).error());
  for (const CellRow& row : *rows) --counts[row.id.workflow][row.manifest][static_cast<std::size_t>(row.status)];
  if (keeps_all_cells_)
    for (const auto& [id, instance] : state_.instances) changed.insert(id);
  for (const InstanceId& id : changed) {
    MJ_TRY(instance, find_instance(id));
    if (instance != nullptr) ++counts[id.workflow][instance->manifest][static_cast<std::size_t>(instance->status())];
  }
  return counts;
}

// ---- snapshots ----

// Returns the instances that differ from the latest snapshot.
Result<CellChanges> LoadedDeployment::collect_changes() {
  CellChanges changes;
  const auto add = [&](const InstanceId& id, const InstanceState* instance) -> Result<void> {
    std::optional<CellRow>& change = changes[id];
    if (instance == nullptr) return {};
    MJ_TRY(row, make_cell_row(*instance));
    change = std::move(row);
    return {};
  };
  if (keeps_all_cells_) {
    for (const auto& [id, instance] : state_.instances) MJ_CHECK(add(id, &instance));
    return changes;
  }
  for (auto dirty = dirty_cells_.begin(); dirty != dirty_cells_.end();) {
    std::set<InstanceId> batch, forgotten;
    for (; dirty != dirty_cells_.end() && batch.size() < kMaxSnapshotCellsBatch; ++dirty) {
      batch.insert(dirty->first);
      if (!state_.instances.contains(dirty->first)) forgotten.insert(dirty->first);
    }
    MJ_CHECK(load_cells(batch));
    for (const InstanceId& id : batch) MJ_CHECK(add(id, state_.find_instance(id)));
    // A forgotten instance has no uncommitted facts, so it can be forgotten again at once.
    for (const InstanceId& id : forgotten) {
      cache_.remove(id);
      forget_instance(state_, id);
    }
  }
  return changes;
}

Result<void> LoadedDeployment::take_snapshot(const Sample& sample) {
  if (!state_.ready_instances.empty() || !index_.unpublished_intents().empty()) {
    MJ_TRY(refused, decide_loaded({sample, TakeSnapshot{}}));
    return add_decision(std::move(refused));
  }
  MJ_TRY(changes, collect_changes());
  auto update = cells_->update(cell_reader_, std::move(changes));
  if (!update) return page_error(std::move(update).error());
  MJ_TRY(root, make_snapshot_root(state_, update->index));
  const std::uint64_t size = update->index.bytes() + root.bytes.size();
  if (size > max_snapshot_bytes_)
    return fail(Code::too_large,
                "a snapshot of " + std::to_string(size) + " bytes; at most " + std::to_string(max_snapshot_bytes_));
  MJ_TRY(decision, decide_loaded({sample, TakeSnapshot{root.hash, size}}));
  MJ_CHECK(add_decision(std::move(decision)));
  start_index({std::move(root), std::move(*update)});
  return {};
}

// Replaces the index by the index of a snapshot that the next commit writes.
void LoadedDeployment::start_index(BuiltSnapshot snapshot) {
  replaced_blobs_ = std::move(snapshot.update.replaced);
  replaced_blobs_.merge(snapshot_pages_);
  if (!latest_snapshot_.empty()) replaced_blobs_.insert(latest_snapshot_);
  snapshot_pages_.clear();
  snapshot_states_.clear();
  replaced_blobs_.erase(snapshot.root.hash);
  snapshot.update.blobs.push_back(snapshot.root);
  for (WorkflowBlob& blob : snapshot.update.blobs) {
    pending_bytes_ += blob.bytes.size();
    pending_page_bytes_ += blob.bytes.size();
    pending_blobs_[blob.hash] = std::move(blob.bytes);
  }
  new_snapshot_ = latest_snapshot_ = snapshot.root.hash;
  snapshot_height_ = state_.height;
  cells_ = std::make_shared<const CellIndex>(std::move(snapshot.update.index));
  keeps_all_cells_ = false;
  snapshot_interval_factor_ = 1;
  dirty_cells_.clear();
  for (const auto& [id, instance] : state_.instances)
    if (can_forget(instance)) cache_.add(instance, false);
}

}  // namespace mycojobs
