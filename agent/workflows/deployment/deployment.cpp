#include "workflows/deployment/deployment.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "text/json.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFoldBatch = 512;               // facts whose cells are read together
constexpr std::uint64_t kMaxFactsWithoutIndex = 50'000;  // height up to which instances can be read from the journal
constexpr int kMaxDecideAttempts = 16;
constexpr std::uint64_t kMaxSmallIndexBytes = 32U << 20;
constexpr std::uint64_t kMaxBlobsBatch = 4U << 20;  // bytes of one commit; a Redis command is limited to 256 MiB
constexpr std::size_t kMaxDroppedBlobs = 1000;      // replaced blobs that are deleted after one commit

std::uint64_t blob_bytes(const std::map<std::string, std::string>& blobs) {
  std::uint64_t bytes = 0;
  for (const auto& [hash, blob] : blobs) bytes += blob.size();
  return bytes;
}

// Writes blobs that do not fit into one commit ahead of it. After a crash in between, these blobs belong to no state,
// but the deployment is due, so the next collection deletes them.
Result<void> write_excess_blobs(WorkflowStore& store, DeploymentCommit commit,
                                std::map<std::string, std::string>& blobs) {
  commit.due_ms = 1;
  for (std::uint64_t remaining = blob_bytes(blobs); remaining > kMaxBlobsBatch;) {
    commit.blobs.clear();
    for (std::uint64_t bytes = 0; bytes < kMaxBlobsBatch && !blobs.empty();) {
      auto blob = blobs.extract(blobs.begin());
      bytes += blob.mapped().size(), remaining -= blob.mapped().size();
      commit.blobs.emplace_back(blob.key(), std::move(blob.mapped()));
    }
    MJ_CHECK(store.commit(commit));
  }
  return {};
}

}  // namespace

ManifestText serialize_manifest(const json& manifest, const CodeFiles& code, Id owner) {
  ManifestText out;
  ParsedManifest parsed = read_manifest(manifest, code, ManifestUse::offered);
  out.problems = std::move(parsed.problems);
  if (!parsed.manifest) return out;
  out.manifest = std::move(parsed.manifest);
  json files = json::object();
  for (const auto& [module, source] : code) files[module] = source;
  out.text = dump_json({{"manifest", manifest}, {"code", std::move(files)}, {"owner", owner}});
  return out;
}

Result<AppliedManifest> parse_applied_manifest(const std::string& text) {
  MJ_TRY(object, parse_json(text));
  if (!object.is_object() || !object.contains("manifest"))
    return fail(Code::invalid, "the stored manifest is not a JSON object with the field manifest");
  CodeFiles code;
  const json files = object.value("code", json::object());
  for (const auto& [module, source] : files.items()) {
    if (source.is_string()) code.emplace(module, source.get<std::string>());
  }
  ParsedManifest parsed = read_manifest(object["manifest"], std::move(code));
  if (!parsed.manifest) return fail(Code::invalid, "the stored manifest: " + join(parsed.problems));
  const json owner = object.value("owner", json(0));
  return AppliedManifest{std::move(parsed.manifest), owner.is_number_unsigned() ? owner.get<Id>() : 0};
}

Result<AppliedManifest> load_manifest(WorkflowStore& store, Id context, const std::string& deployment,
                                      const std::string& hash) {
  MJ_TRY(text, store.manifest(context, deployment, hash));
  MJ_TRY(applied, parse_applied_manifest(text));
  if (applied.manifest->hash != hash)
    return fail(Code::invalid, deployment + ": manifest " + hash + " is stored with other content");
  return applied;
}

Result<void> for_each_fact(WorkflowStore& store, Id context, const std::string& deployment, std::uint64_t after,
                           const std::function<Result<bool>(WorkflowFact)>& visit) {
  for (;;) {
    MJ_TRY(read, store.read(context, deployment, after, kMaxFactsBatch));
    for (const std::string& bytes : read.facts) {
      ++after;
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), deployment + ": height " + std::to_string(after));
      MJ_TRY(has_more, visit(std::move(*fact)));
      if (!has_more) return {};
    }
    if (after >= read.height) return {};
    if (read.facts.empty())
      return fail(Code::invalid, deployment + ": the fact at height " + std::to_string(after + 1) + " is missing");
  }
}

const PendingIntent* find_pending(const DeploymentState& deployment, const std::string& intent) {
  const auto instance = deployment.intents.find(intent);
  const InstanceState* state =
      instance == deployment.intents.end() ? nullptr : deployment.find_instance(instance->second);
  if (state == nullptr) return nullptr;
  const auto found = state->pending_intents.find(intent);
  return found == state->pending_intents.end() ? nullptr : &found->second;
}

// ---- the index ----

DeploymentIndex::DeploymentIndex(const DeploymentState& deployment, std::size_t max_inbox_events)
    : max_inbox_events_(max_inbox_events) {
  for (const auto& [ticket, id] : deployment.ready_instances) update_full_instances(deployment, id);
  for (const auto& [intent, instance] : deployment.intents) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) add(*pending);
  }
}

void DeploymentIndex::add(const PendingIntent& pending) {
  if (!pending.published) {
    unpublished_intents_[{pending.sequence, pending.intent.index}] = pending.intent.hash;
    return;
  }
  unpublished_intents_.erase({pending.sequence, pending.intent.index});
  if (const std::uint64_t expiry_ms = get_expiry_ms(pending); expiry_ms != 0)
    timers_.emplace(expiry_ms, pending.intent.hash);
  if (pending.effect_ref.find(':') != std::string::npos) effect_refs_[pending.effect_ref] = pending.intent.hash;
}

void DeploymentIndex::remove(const PendingIntent& pending) {
  unpublished_intents_.erase({pending.sequence, pending.intent.index});
  if (!pending.published) return;
  timers_.erase({get_expiry_ms(pending), pending.intent.hash});
  effect_refs_.erase(pending.effect_ref);
}

void DeploymentIndex::before_fact(const DeploymentState& deployment, const WorkflowFact& fact) {
  const auto remove_intent = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) remove(*pending);
  };
  if (const auto* receipt = std::get_if<ReceiptAdmitted>(&fact.content)) remove_intent(receipt->intent);
  if (const auto* receipt = std::get_if<ReceiptMismatched>(&fact.content)) remove_intent(receipt->intent);
  if (const auto* failed = std::get_if<InstanceFailed>(&fact.content))
    for (const std::string& intent : failed->dropped_intents) remove_intent(intent);
}

void DeploymentIndex::update_full_instances(const DeploymentState& deployment, const InstanceId& id) {
  const InstanceState* instance = deployment.find_instance(id);
  const std::size_t inbox_size = instance == nullptr ? 0 : instance->inbox.size();
  if (inbox_size >= max_inbox_events_) full_instances_.insert(id);
  if (inbox_size <= max_inbox_events_ / 2) full_instances_.erase(id);
}

void DeploymentIndex::after_fact(const DeploymentState& deployment, const WorkflowFact& fact) {
  for (const InstanceId& id : affected_instances(fact)) update_full_instances(deployment, id);
  const auto add_intent = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) add(*pending);
  };
  if (const auto* step = std::get_if<StepTaken>(&fact.content))
    for (const Intent& intent : step->intents) add_intent(intent.hash);
  if (const auto* published = std::get_if<EffectPublished>(&fact.content)) add_intent(published->intent);
}

std::string DeploymentIndex::find_intent(const std::string& effect_ref) const {
  const auto found = effect_refs_.find(effect_ref);
  return found == effect_refs_.end() ? "" : found->second;
}

// ---- the deployment ----

LoadedDeployment::LoadedDeployment(WorkflowStore& store, Id context, const std::string& name,
                                   const CellCacheLimits& cache)
    : store_(&store),
      context_(context),
      name_(name),
      cell_reader_([&store, context, name](const std::vector<std::string>& hashes) {
        return store.read_blobs(context, name, hashes);
      }),
      cache_(cache) {
  state_.id = std::to_string(context) + '/' + name;
}

// Another snapshot may replace the latest one while its pages are read. Then the latest one is read again. A snapshot
// that cannot be read is ignored, since the journal has all facts.
Result<LoadedDeployment> LoadedDeployment::load(WorkflowStore& store, Id context, const std::string& name,
                                                const LoadOptions& options) {
  for (std::string unreadable = options.unreadable_snapshot;;) {
    LoadedDeployment deployment(store, context, name, options.cache);
    MJ_TRY(head, store.read(context, name, 0, 0));
    const bool has_snapshot = !options.from_beginning && head.snapshot_height != 0 &&
                              head.snapshot_height <= head.height && head.snapshot != unreadable;
    deployment.keeps_all_cells_ = head.height > kMaxFactsWithoutIndex;
    Result<void> loaded;
    if (has_snapshot) loaded = deployment.load_snapshot(head.snapshot, head.snapshot_height);
    if (loaded) loaded = deployment.fold_all(store, deployment.state_.height);
    if (!loaded && !deployment.unreadable_snapshot_.empty() && loaded.error().code != Code::unavailable) {
      unreadable = deployment.unreadable_snapshot_;
      continue;
    }
    MJ_CHECK(loaded);
    MJ_CHECK(deployment.load_manifests(store));
    // An earlier coordinator may have left unused blobs. The threshold of 1 starts a collection after the first blob.
    deployment.collection_threshold_ = 1;
    return deployment;
  }
}

// Errors other than unavailable set unreadable_snapshot_. The content of a snapshot has a smaller height than its fact
// SnapshotTaken, which is `height`.
Result<void> LoadedDeployment::load_snapshot(const std::string& hash, std::uint64_t height) {
  latest_snapshot_ = hash;
  const auto check = [this](auto result) {
    if (!result && result.error().code != Code::unavailable) unreadable_snapshot_ = latest_snapshot_;
    return result;
  };
  MJ_TRY(bytes, check(store_->blob(context_, name_, hash)));
  MJ_TRY(root, check(read_snapshot_root(hash, bytes)));
  if (root.head.id != state_.id || root.head.height >= height)
    return check(Result<void>(fail(Code::invalid, name_ + ": the snapshot is not a snapshot of it")));
  snapshot_height_ = height;
  if (root.has_pages) {
    const auto read = [this](const auto& hashes) { return store_->read_blobs(context_, name_, hashes); };
    MJ_TRY(whole, check(read_snapshot(std::move(root), read)));
    state_ = std::move(whole.deployment);
    keeps_all_cells_ = true;
    snapshot_states_ = referenced_blobs(state_);
    snapshot_pages_ = std::move(whole.pages);
    for (const auto& [id, instance] : state_.instances) count(instance, 1);
  } else {
    state_ = std::move(root.head);
    cells_ = std::make_shared<const CellIndex>(std::move(root.cells));
    keeps_all_cells_ = false;
    for (const auto& [workflow, cells] : cells_->workflows()) counts_[workflow] = cells.counts;
    const auto has_pending = [](const std::string&, const CellRange& range) { return range.pending > 0; };
    const auto visited =
        cells_->visit(cell_reader_, std::nullopt, has_pending, [&](const CellRow& row) -> Result<bool> {
          if (!row.has_pending_intents) return true;
          MJ_TRY(instance, decode_instance(row));
          add_cell(std::move(instance));
          return true;
        });
    MJ_CHECK(check(visited));
  }
  index_ = DeploymentIndex(state_, kMaxCellInboxEntries);
  return {};
}

Result<void> LoadedDeployment::fold_one(const WorkflowFact& fact) {
  const std::vector<InstanceId> affected = affected_instances(fact);
  const auto count_all = [&](int sign) {
    for (const InstanceId& id : affected)
      if (const InstanceState* instance = state_.find_instance(id)) count(*instance, sign);
  };
  index_.before_fact(state_, fact);
  count_all(-1);
  if (auto problem = fold(state_, fact))
    return fail(Code::invalid, name_ + ": " + std::string(problem->rule) + ": " + problem->text);
  count_all(1);
  index_.after_fact(state_, fact);
  for (const InstanceId& id : affected) update_cell(id, fact.height);
  return {};
}

Result<void> LoadedDeployment::fold_batch(std::vector<WorkflowFact>& facts) {
  std::set<InstanceId> ids;
  for (const WorkflowFact& fact : facts)
    for (InstanceId& id : affected_instances(fact)) ids.insert(std::move(id));
  MJ_CHECK(load_cells(ids));
  for (const WorkflowFact& fact : facts) MJ_CHECK(fold_one(fact));
  facts.clear();
  forget_excess_cells();
  return {};
}

Result<void> LoadedDeployment::fold_all(WorkflowStore& store, std::uint64_t after) {
  std::vector<WorkflowFact> batch;
  const auto fold_batches = [&](WorkflowFact fact) -> Result<bool> {
    batch.push_back(std::move(fact));
    if (batch.size() >= kMaxFoldBatch) MJ_CHECK(fold_batch(batch));
    return true;
  };
  MJ_CHECK(for_each_fact(store, context_, name_, after, fold_batches));
  MJ_CHECK(fold_batch(batch));
  stored_height_ = state_.height;
  return {};
}

Result<void> LoadedDeployment::load_manifests(WorkflowStore& store) {
  if (!state_.manifest.empty()) MJ_CHECK(add_manifest(store, state_.manifest));
  for (const auto& [workflow, cells] : cells_->workflows())
    for (const auto& [manifest, counts] : cells.counts) used_manifests_.insert(manifest);
  for (const auto& [id, instance] : state_.instances) used_manifests_.insert(instance.manifest);
  for (const std::string& hash : used_manifests_) MJ_CHECK(add_manifest(store, hash));
  return {};
}

Result<void> LoadedDeployment::add_manifest(WorkflowStore& store, const std::string& hash) {
  if (catalog_.find(hash) != nullptr) return {};
  MJ_TRY(applied, load_manifest(store, context_, name_, hash));
  add_manifest(std::move(applied));
  return {};
}

void LoadedDeployment::add_manifest(AppliedManifest applied) {
  if (!owners_.emplace(applied.manifest->hash, applied.owner).second) return;
  catalog_.add(std::move(applied.manifest));
}

Id LoadedDeployment::owner_of(const std::string& hash) const {
  const auto found = owners_.find(hash);
  return found == owners_.end() ? 0 : found->second;
}

// A decision is repeated until all instances on which it depends are in memory or are known not to exist.
Result<WorkflowDecision> LoadedDeployment::decide_loaded(const WorkflowInput& input) {
  WorkflowRules rules;
  rules.max_inbox_events = std::numeric_limits<std::size_t>::max();  // the store rejects posts to full instances
  rules.max_snapshot_bytes = max_snapshot_bytes_;
  for (int attempt = 0; attempt < kMaxDecideAttempts; ++attempt) {
    std::set<InstanceId> missing;
    state_.missing.ids = &missing;
    auto decision = mycojobs::decide(state_, catalog_, input, rules);
    state_.missing.ids = nullptr;
    std::erase_if(missing, [this](const InstanceId& id) { return absent_cells_.contains(id); });
    if (missing.empty()) return decision;
    MJ_CHECK(load_cells(missing));
  }
  return fail(Code::internal, name_ + ": the instances of a decision change all the time");
}

Result<void> LoadedDeployment::decide(const WorkflowInput& input) {
  if (std::holds_alternative<TakeSnapshot>(input.content)) return take_snapshot(input.sample);
  drop_snapshot();
  MJ_TRY(decision, decide_loaded(input));
  return add_decision(std::move(decision));
}

Result<void> LoadedDeployment::add_decision(WorkflowDecision decision) {
  std::vector<std::string> encoded;
  for (const WorkflowFact& fact : decision.facts) {
    MJ_TRY(bytes, encode(fact));
    encoded.push_back(std::move(bytes));
  }
  for (const WorkflowFact& fact : decision.facts) {
    MJ_CHECK(fold_one(fact));
    for (const InstanceId& id : affected_instances(fact)) {
      std::string& heights = pending_changes_[id];
      heights += (heights.empty() ? "" : " ") + std::to_string(fact.height);
    }
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.content)) applied_manifest_ = applied->manifest;
  }
  for (std::string& fact : encoded) {
    pending_bytes_ += fact.size();
    pending_facts_.push_back(std::move(fact));
  }
  for (WorkflowBlob& blob : decision.blobs) {
    pending_bytes_ += blob.bytes.size();
    pending_blobs_[blob.hash] = std::move(blob.bytes);
  }
  return {};
}

Result<StepRequest> LoadedDeployment::build_step_request(WorkflowStore& store, const InstanceId& id) {
  const auto instance = state_.instances.find(id);
  if (instance == state_.instances.end() || !instance->second.state || !instance->second.state->is_spilled())
    return mycojobs::build_step_request(state_, catalog_, id);
  StateRef& state = *instance->second.state;
  const auto pending = pending_blobs_.find(state.hash);
  std::string bytes;
  if (pending != pending_blobs_.end()) {
    bytes = pending->second;
  } else {
    MJ_TRY(stored, store.blob(context_, name_, state.hash));
    bytes = std::move(stored);
  }
  MJ_CHECK(attach_blob(state, std::move(bytes)));
  auto request = mycojobs::build_step_request(state_, catalog_, id);
  state.bytes.clear();  // The state remains in the blob.
  return request;
}

Result<void> LoadedDeployment::commit(WorkflowStore& store, std::uint64_t due_ms, bool alone,
                                      const std::optional<std::string>& expected_applies) {
  DeploymentCommit commit;
  commit.context = context_;
  commit.deployment = name_;
  commit.base_height = stored_height_;
  const DeploymentCommit blob_commit = commit;
  commit.processed_entries = processed_entries_;
  commit.snapshot = new_snapshot_;
  commit.manifest = applied_manifest_;
  commit.due_ms = due_ms;
  commit.requires_empty_inbox = alone;
  const std::size_t facts = pending_facts_.size();
  const std::uint64_t new_blob_bytes = blob_bytes(pending_blobs_) - pending_page_bytes_;
  const bool has_first_blob = collection_threshold_ == 1 && !pending_blobs_.empty();
  MJ_CHECK(write_excess_blobs(store, blob_commit, pending_blobs_));
  for (auto& [hash, bytes] : pending_blobs_) commit.blobs.emplace_back(hash, std::move(bytes));
  commit.facts = std::move(pending_facts_);
  for (auto& [id, heights] : pending_changes_) commit.changes.emplace_back(store_name(id), std::move(heights));
  pending_changes_.clear();
  const bool full_changed = stored_full_instances_ != index_.full_instances();
  if (full_changed) {
    commit.full_instances.emplace();
    for (const InstanceId& id : index_.full_instances()) commit.full_instances->push_back(store_name(id));
  }
  MJ_CHECK(expected_applies ? store.commit_manifest(commit, *expected_applies) : store.commit(commit));
  if (full_changed) stored_full_instances_ = index_.full_instances();
  stored_height_ += facts;
  written_blob_bytes_ += std::max<std::uint64_t>(new_blob_bytes, has_first_blob ? 1 : 0);
  pending_bytes_ = pending_page_bytes_ = 0;
  pending_facts_.clear();
  pending_blobs_.clear();
  processed_entries_.clear();
  new_snapshot_.clear();
  applied_manifest_.clear();
  forget_excess_cells();
  if (replaced_blobs_.empty()) return {};
  std::vector<std::string> replaced;
  while (!replaced_blobs_.empty() && replaced.size() < kMaxDroppedBlobs)
    replaced.push_back(std::move(replaced_blobs_.extract(replaced_blobs_.begin()).value()));
  auto dropped = store.drop_blobs(context_, name_, stored_height_, replaced);
  return dropped || dropped.error().code == Code::conflict ? Result<void>() : dropped;
}

Result<void> LoadedDeployment::write_blobs(WorkflowStore& store, std::map<std::string, std::string> blobs) {
  DeploymentCommit commit;
  commit.context = context_;
  commit.deployment = name_;
  commit.base_height = stored_height_;
  commit.due_ms = 1;
  MJ_CHECK(write_excess_blobs(store, commit, blobs));  // a part can have cells of many MiB
  if (blobs.empty()) return {};
  for (auto& [hash, bytes] : blobs) commit.blobs.emplace_back(hash, std::move(bytes));
  return store.commit(commit);
}

bool LoadedDeployment::should_collect_after_snapshot() const {
  return written_blob_bytes_ > 0 && cells_->bytes() <= kMaxSmallIndexBytes;
}

// Returns the blobs of the latest snapshot, with the states of its instances.
Result<std::set<std::string>> LoadedDeployment::list_snapshot_blobs(std::uint64_t& state_bytes) {
  MJ_TRY(blobs, cells_->list_blobs(cell_reader_));
  blobs.insert(snapshot_pages_.begin(), snapshot_pages_.end());
  if (!latest_snapshot_.empty()) blobs.insert(latest_snapshot_);
  const auto has_spilled = [](const std::string&, const CellRange& range) { return range.spilled > 0; };
  const auto visited = cells_->visit(cell_reader_, std::nullopt, has_spilled, [&](const CellRow& row) -> Result<bool> {
    if (!row.has_spilled_state) return true;
    MJ_TRY(instance, decode_instance(row));
    if (instance.state && blobs.insert(instance.state->hash).second && !state_.instances.contains(row.id))
      state_bytes += instance.state->size;
    return true;
  });
  MJ_CHECK(visited);
  blobs.insert(snapshot_states_.begin(), snapshot_states_.end());
  return blobs;
}

Result<void> LoadedDeployment::collect_garbage_blobs(WorkflowStore& store, std::uint64_t min_bytes) {
  std::uint64_t live_bytes = 0;
  auto live_blobs = list_snapshot_blobs(live_bytes);
  if (!live_blobs) return page_error(std::move(live_blobs).error());
  live_blobs->merge(referenced_blobs(state_));
  for (const auto& [id, instance] : state_.instances)
    if (instance.state && instance.state->is_spilled()) live_bytes += instance.state->size;
  written_blob_bytes_ = 0;
  collection_threshold_ = std::max(live_bytes, min_bytes);
  MJ_TRY(hashes, store.blobs(context_, name_));
  std::vector<std::string> unused;
  for (std::string& hash : hashes) {
    if (!live_blobs->contains(hash)) unused.push_back(std::move(hash));
  }
  if (unused.empty()) return {};
  auto result = store.drop_blobs(context_, name_, stored_height_, unused);
  return result || result.error().code == Code::conflict ? Result<void>() : result;
}

}  // namespace mycojobs
