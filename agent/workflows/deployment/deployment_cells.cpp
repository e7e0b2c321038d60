// The instances of a LoadedDeployment that are not in memory: reading, forgetting, snapshots.
#include <algorithm>
#include <array>

#include "workflows/deployment/deployment.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

// Facts of an instance since the snapshot, up to which the instance can be forgotten.
constexpr std::size_t kMaxReplayedFacts = 64;
constexpr std::size_t kMaxFactsRead = 500;  // facts that are read together

constexpr std::size_t kMaxAbsentCells = 4096;
constexpr std::size_t kMaxVisitedBatch = 64;  // changed instances that a list reads together
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

// Calls visit() for each fact of these heights, in their order.
Result<void> visit_facts(
    WorkflowStore& store, Id context, const std::string& deployment, const HeightReceivers& heights,
    const std::function<Result<void>(const WorkflowFact&, const std::vector<InstanceId>&)>& visit) {
  for (auto next = heights.begin(); next != heights.end();) {
    std::vector<std::uint64_t> batch;
    for (auto row = next; row != heights.end() && batch.size() < kMaxFactsRead; ++row) batch.push_back(row->first);
    MJ_TRY(facts, store.read_facts(context, deployment, batch));
    for (const std::string& bytes : facts) {
      const std::string location = deployment + ": the fact at height " + std::to_string(next->first);
      if (bytes.empty()) return fail(Code::invalid, location + " is missing");
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), location);
      MJ_CHECK(visit(*fact, next->second));
      ++next;
    }
    if (facts.empty()) return fail(Code::invalid, deployment + ": facts cannot be read");
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
  auto next = changed.begin(), next_unread = next;
  bool has_more = true;
  const auto read_changed = [&] {
    std::set<InstanceId> batch;
    while (next_unread != changed.end() && batch.size() < kMaxVisitedBatch) batch.insert(*next_unread++);
    if (pending_facts_.empty()) forget_excess_cells();
    return load_cells(batch);
  };
  const auto visit_changed = [&](const InstanceId* end) -> Result<void> {
    for (; has_more && next != changed.end() && (end == nullptr || *next < *end); ++next) {
      if (next == next_unread) MJ_CHECK(read_changed());
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

void LoadedDeployment::count(const InstanceState& instance, int sign) {
  auto& manifests = counts_[instance.id.workflow];
  CellCounts& counts = manifests[instance.manifest];
  std::uint64_t& number = counts[static_cast<std::size_t>(instance.status())];
  number = sign < 0 ? number - std::min<std::uint64_t>(number, 1) : number + 1;
  if (counts == CellCounts{}) manifests.erase(instance.manifest);
}

// ---- snapshots ----

struct LoadedDeployment::SnapshotBuild {
  Sample sample;
  CellIndex index;                           // has the instances up to `last`, and those that have not changed
  std::optional<InstanceId> last = {};       // last instance of the parts so far
  bool adds_all_cells = false;               // `index` began empty, since the latest snapshot has no salt
  std::map<std::string, std::string> blobs;  // blobs of the parts that are not written yet, by hash
  std::size_t blob_bytes = 0;                // size of `blobs`
  std::uint64_t written_bytes = 0;           // size of written blobs
  std::set<std::string> replaced;            // blobs to be deleted once the snapshot is stored
  CellReader reader;
};

Result<void> LoadedDeployment::start_snapshot(const Sample& sample) {
  drop_snapshot();
  if (!state_.ready_instances.empty() || !index_.unpublished_intents().empty())
    return decide_loaded({sample, TakeSnapshot{}}).map([](const WorkflowDecision&) {});
  MJ_CHECK(check_known_size());
  auto build = std::make_shared<SnapshotBuild>();
  build->sample = sample;
  build->replaced = replaced_blobs_;
  build->adds_all_cells = cells_->salt().empty();
  build->index =
      build->adds_all_cells ? CellIndex(derive_entropy(sample, 0).substr(0, kCellSaltBytes)) : CellIndex(*cells_);
  if (build->adds_all_cells) {
    auto blobs = cells_->list_blobs(cell_reader_);
    if (!blobs) return page_error(std::move(blobs).error());
    build->replaced.merge(*blobs);
  }
  // Parts are in the order of the instances, so few nodes are read again.
  constexpr std::size_t kMaxCachedNodeBytes = 1U << 20;
  build->reader = CellReader(
      [build = build.get(), &store = *store_, context = context_,
       name = name_](const std::vector<std::string>& hashes) -> Result<std::vector<std::string>> {
        std::vector<std::string> stored;
        for (const std::string& hash : hashes)
          if (!build->blobs.contains(hash)) stored.push_back(hash);
        MJ_TRY(found, store.read_blobs(context, name, stored));
        std::vector<std::string> result;
        auto next = found.begin();
        for (const std::string& hash : hashes) {
          const auto unwritten = build->blobs.find(hash);
          result.push_back(unwritten != build->blobs.end() ? unwritten->second : std::move(*next++));
        }
        return result;
      },
      kMaxCachedNodeBytes);
  build_ = std::move(build);
  return {};
}

// Returns the error too_large if the parts of the snapshot that are known without a read exceed the limit.
Result<void> LoadedDeployment::check_known_size() const {
  std::uint64_t bytes = 0;
  if (keeps_all_cells_) {
    for (auto row = state_.instances.begin(); row != state_.instances.end() && bytes <= max_snapshot_bytes_; ++row)
      bytes += row->first.key.size() + (row->second.state ? row->second.state->bytes.size() : 0);
  } else {
    for (const auto& [workflow, cells] : cells_->workflows()) {
      InstanceId begin{workflow, ""};
      for (const CellRange& node : cells.nodes) {
        const auto changed = dirty_cells_.lower_bound(begin);
        begin.key = node.last_key;
        if (changed == dirty_cells_.end() || begin < changed->first) bytes += node.bytes;
      }
    }
  }
  return check_snapshot_size(bytes);
}

// Returns the next instances that differ from the index of the snapshot, at most max_cells.
Result<CellChanges> LoadedDeployment::next_changes(std::size_t max_cells) {
  CellChanges changes;
  std::set<InstanceId> ids;
  const auto add_ids = [&](const auto& instances) {
    auto row = build_->last ? instances.upper_bound(*build_->last) : instances.begin();
    for (; row != instances.end() && ids.size() < max_cells; ++row) ids.insert(row->first);
  };
  if (keeps_all_cells_)
    add_ids(state_.instances);
  else
    add_ids(dirty_cells_);
  if (build_->adds_all_cells) {
    const auto wants_all = [](const std::string&, const CellRange&) { return true; };
    MJ_CHECK(cells_->visit(build_->reader, build_->last, wants_all, [&](CellRow row) -> Result<bool> {
      if (changes.size() >= max_cells) return false;
      const InstanceId id = row.id;
      changes.emplace(id, std::move(row));
      return true;
    }));
    // The rows and the ids are the beginnings of two lists. The beginning of both lists together has max_cells.
    std::set<InstanceId> all = ids;
    for (const auto& [id, row] : changes) all.insert(id);
    while (all.size() > max_cells) all.erase(std::prev(all.end()));
    std::erase_if(changes, [&](const auto& row) { return !all.contains(row.first); });
    std::erase_if(ids, [&](const InstanceId& id) { return !all.contains(id); });
  }
  CellQuery query{cells_, {}};
  for (const InstanceId& id : ids) {
    const InstanceState* instance = state_.find_instance(id);
    std::optional<CellRow>& change = changes[id] = std::nullopt;
    if (instance != nullptr) {
      MJ_TRY(row, make_cell_row(*instance));
      change = std::move(row);
    } else if (!absent_cells_.contains(id)) {
      query.cells[id] = dirty_cells_.at(id);
    }
  }
  MJ_TRY(found, read_cells(*store_, context_, name_, build_->reader, query));
  for (const auto& [id, instance] : found) {
    if (!instance) continue;
    MJ_TRY(row, make_cell_row(*instance));
    changes[id] = std::move(row);
  }
  return changes;
}

Result<bool> LoadedDeployment::build_snapshot_part(std::size_t max_cells) {
  auto is_complete = add_snapshot_part(max_cells);
  if (!is_complete) drop_snapshot();
  return is_complete;
}

Result<bool> LoadedDeployment::add_snapshot_part(std::size_t max_cells) {
  SnapshotBuild& build = *build_;
  auto changes = next_changes(max_cells);
  if (!changes) return page_error(std::move(changes).error());
  if (changes->empty()) {
    MJ_CHECK(finish_snapshot());
    return true;
  }
  build.last = changes->rbegin()->first;
  auto update = build.index.update(build.reader, std::move(*changes));
  if (!update) return page_error(std::move(update).error());
  build.index = std::move(update->index);
  for (const std::string& hash : update->replaced) {
    const auto unwritten = build.blobs.find(hash);
    if (unwritten == build.blobs.end()) {
      build.replaced.insert(hash);
    } else {
      build.blob_bytes -= unwritten->second.size();
      build.blobs.erase(unwritten);
    }
  }
  for (WorkflowBlob& blob : update->blobs) {
    build.replaced.erase(blob.hash);
    if (build.blobs.contains(blob.hash)) continue;
    build.blob_bytes += blob.bytes.size();
    build.blobs.emplace(blob.hash, std::move(blob.bytes));
  }
  std::uint64_t bytes = 0;  // size of the nodes that no later part changes
  for (const auto& [workflow, cells] : build.index.workflows())
    for (const CellRange& node : cells.nodes)
      if (InstanceId{workflow, node.last_key} < *build.last) bytes += node.bytes;
  return check_snapshot_size(bytes).map([] { return false; });
}

Result<void> LoadedDeployment::check_snapshot_size(std::uint64_t bytes) const {
  if (bytes <= max_snapshot_bytes_) return {};
  return fail(Code::too_large, "a snapshot of at least " + std::to_string(bytes) + " bytes; at most " +
                                   std::to_string(max_snapshot_bytes_));
}

Result<void> LoadedDeployment::take_snapshot(const Sample& sample) {
  MJ_CHECK(start_snapshot(sample));
  while (is_building_snapshot()) MJ_CHECK(build_snapshot_part());
  return {};
}

std::size_t LoadedDeployment::unwritten_snapshot_bytes() const { return build_ ? build_->blob_bytes : 0; }

// Returns the blobs that are not written and that the next part may replace: those from the last cell of the parts on.
Result<std::set<std::string>> LoadedDeployment::find_open_blobs() {
  std::set<std::string> open;
  const auto cells = build_->index.workflows().find(build_->last->workflow);
  if (cells == build_->index.workflows().end()) return open;
  const auto add = [&](const std::vector<CellRange>& ranges,
                       const std::function<Result<void>(const CellRange&)>& visit) -> Result<void> {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const bool is_open = ranges[i].last_key >= build_->last->key || i + 1 == ranges.size();
      if (!is_open || !build_->blobs.contains(ranges[i].hash)) continue;
      open.insert(ranges[i].hash);
      MJ_CHECK(visit(ranges[i]));
    }
    return Result<void>();
  };
  MJ_CHECK(add(cells->second.nodes, [&](const CellRange& range) -> Result<void> {
    MJ_TRY(node, build_->reader.node(cells->first, range));
    return add(node->pages, [](const CellRange&) { return Result<void>(); });
  }));
  return open;
}

Result<void> LoadedDeployment::write_snapshot_blobs(WorkflowStore& store) {
  MJ_TRY(open, find_open_blobs());
  std::map<std::string, std::string> blobs;
  for (auto blob = build_->blobs.begin(); blob != build_->blobs.end();) {
    const auto next = std::next(blob);
    if (!open.contains(blob->first)) {
      build_->blob_bytes -= blob->second.size();
      build_->written_bytes += blob->second.size();
      blobs.insert(build_->blobs.extract(blob));
    }
    blob = next;
  }
  return blobs.empty() ? Result<void>() : write_blobs(store, std::move(blobs));
}

Result<void> LoadedDeployment::finish_snapshot() {
  MJ_TRY(root, make_snapshot_root(state_, build_->index));
  const std::uint64_t size = build_->index.bytes() + root.bytes.size();
  MJ_CHECK(check_snapshot_size(size));
  MJ_TRY(decision, decide_loaded({build_->sample, TakeSnapshot{root.hash, size}}));
  MJ_CHECK(add_decision(std::move(decision)));
  start_index(std::move(root));
  return {};
}

// The written blobs of the snapshot belong to no state, so they count as garbage.
void LoadedDeployment::drop_snapshot() {
  if (build_ == nullptr) return;
  written_blob_bytes_ += build_->written_bytes;
  build_ = nullptr;
}

// Replaces the index by the index of the snapshot, which the next commit stores.
void LoadedDeployment::start_index(WorkflowBlob root) {
  replaced_blobs_ = std::move(build_->replaced);
  replaced_blobs_.merge(snapshot_pages_);
  if (!latest_snapshot_.empty()) replaced_blobs_.insert(latest_snapshot_);
  snapshot_pages_.clear();
  snapshot_states_.clear();
  replaced_blobs_.erase(root.hash);
  new_snapshot_ = latest_snapshot_ = root.hash;
  build_->blobs.emplace(std::move(root.hash), std::move(root.bytes));
  for (auto& [hash, bytes] : build_->blobs) {
    pending_bytes_ += bytes.size();
    pending_page_bytes_ += bytes.size();
    pending_blobs_[hash] = std::move(bytes);
  }
  snapshot_height_ = state_.height;
  cells_ = std::make_shared<const CellIndex>(std::move(build_->index));
  build_ = nullptr;
  keeps_all_cells_ = false;
  snapshot_interval_factor_ = 1;
  dirty_cells_.clear();
  for (const auto& [id, instance] : state_.instances)
    if (can_forget(instance)) cache_.add(instance, false);
}

}  // namespace mycojobs
