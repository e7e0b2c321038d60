#include "workflows/deployment/deployment.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "store/redis/redis_workflows.h"
#include "text/cbor.h"
#include "text/json.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMaxFactsBatch = 1000;
constexpr std::uint64_t kMaxBlobsBatch = 4U << 20;  // bytes of one commit; a Redis command is limited to 256 MiB

std::uint64_t blob_bytes(const std::map<std::string, std::string>& blobs) {
  std::uint64_t bytes = 0;
  for (const auto& [hash, blob] : blobs) bytes += blob.size();
  return bytes;
}

// Writes blobs that do not fit into one commit ahead of it. After a crash in between, these blobs belong to no state,
// but the deployment is due, so the next collection deletes them.
Result<void> write_ahead(WorkflowStore& store, DeploymentCommit part, std::map<std::string, std::string>& blobs) {
  part.due_ms = 1;
  for (std::uint64_t left = blob_bytes(blobs); left > kMaxBlobsBatch;) {
    part.blobs.clear();
    for (std::uint64_t bytes = 0; bytes < kMaxBlobsBatch && !blobs.empty();) {
      auto blob = blobs.extract(blobs.begin());
      bytes += blob.mapped().size(), left -= blob.mapped().size();
      part.blobs.emplace_back(blob.key(), std::move(blob.mapped()));
    }
    MJ_CHECK(store.commit(part));
  }
  return {};
}

// Result of the search for a snapshot. An unreadable snapshot is ignored, since the journal has all facts. The content
// of a snapshot has a smaller height than its fact SnapshotTaken, which is the `height` here.
struct LatestSnapshot {
  std::string hash;
  std::uint64_t height = 0;
  ParsedSnapshot read;
};
Result<std::optional<LatestSnapshot>> latest_snapshot(WorkflowStore& store, Id context, const std::string& name) {
  for (std::string before;;) {
    MJ_TRY(head, store.read(context, name, 0, 0));
    // Another snapshot may have replaced this one while its pages were read. Try the latest one again.
    if (head.snapshot_height == 0 || head.snapshot_height > head.height || head.snapshot == before)
      return std::optional<LatestSnapshot>();
    auto read = read_snapshot(head.snapshot, [&](const std::string& hash) { return store.blob(context, name, hash); });
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(read).error());
    if (read && read->deployment.height < head.snapshot_height)
      return std::optional(LatestSnapshot{std::move(head.snapshot), head.snapshot_height, std::move(*read)});
    before = std::move(head.snapshot);
  }
}

}  // namespace

ManifestText manifest_text(const json& manifest, const CodeFiles& code, Id owner) {
  ManifestText out;
  ParsedManifest read = read_manifest(manifest, code, ManifestUse::offered);
  out.problems = std::move(read.problems);
  if (!read.manifest) return out;
  out.manifest = std::move(read.manifest);
  json files = json::object();
  for (const auto& [module, source] : code) files[module] = source;
  out.text = dump_json({{"manifest", manifest}, {"code", std::move(files)}, {"owner", owner}});
  return out;
}

Result<AppliedManifest> read_applied(const std::string& text) {
  MJ_TRY(object, parse_json(text));
  if (!object.is_object() || !object.contains("manifest"))
    return fail(Code::invalid, "the stored manifest is not a JSON object with the field manifest");
  CodeFiles code;
  const json files = object.value("code", json::object());
  for (const auto& [module, source] : files.items()) {
    if (source.is_string()) code.emplace(module, source.get<std::string>());
  }
  ParsedManifest read = read_manifest(object["manifest"], std::move(code));
  if (!read.manifest) return fail(Code::invalid, "the stored manifest: " + join(read.problems));
  const json owner = object.value("owner", json(0));
  return AppliedManifest{std::move(read.manifest), owner.is_number_unsigned() ? owner.get<Id>() : 0};
}

Result<AppliedManifest> stored_manifest(WorkflowStore& store, Id context, const std::string& deployment,
                                        const std::string& hash) {
  MJ_TRY(text, store.manifest(context, deployment, hash));
  MJ_TRY(applied, read_applied(text));
  if (applied.manifest->hash != hash)
    return fail(Code::invalid, deployment + ": manifest " + hash + " is stored with other content");
  return applied;
}

Result<void> for_each_fact(WorkflowStore& store, Id context, const std::string& deployment, std::uint64_t after,
                           const std::function<Result<bool>(WorkflowFact)>& see) {
  for (;;) {
    MJ_TRY(read, store.read(context, deployment, after, kMaxFactsBatch));
    for (const std::string& bytes : read.facts) {
      ++after;
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), deployment + ": height " + std::to_string(after));
      MJ_TRY(more, see(std::move(*fact)));
      if (!more) return {};
    }
    if (after >= read.height) return {};
    if (read.facts.empty())
      return fail(Code::invalid, deployment + ": the fact at height " + std::to_string(after + 1) + " is missing");
  }
}

const PendingIntent* find_pending(const DeploymentState& deployment, const std::string& intent) {
  const auto cell = deployment.intents.find(intent);
  const InstanceState* state = cell == deployment.intents.end() ? nullptr : deployment.cell(cell->second);
  if (state == nullptr) return nullptr;
  const auto found = state->pending.find(intent);
  return found == state->pending.end() ? nullptr : &found->second;
}

// ---- the index ----

DeploymentIndex::DeploymentIndex(const DeploymentState& deployment, std::size_t most_mail) : most_mail_(most_mail) {
  for (const auto& [ticket, id] : deployment.ready) count_mail(deployment, id);
  for (const auto& [intent, cell] : deployment.intents) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) add(*pending);
  }
}

void DeploymentIndex::add(const PendingIntent& pending) {
  if (!pending.published) {
    queued_[{pending.sequence, pending.intent.index}] = pending.intent.hash;
    return;
  }
  queued_.erase({pending.sequence, pending.intent.index});
  if (const std::uint64_t at = expired_receipts(pending); at != 0) timers_.emplace(at, pending.intent.hash);
  if (pending.effect_ref.find(':') != std::string::npos) effect_refs_[pending.effect_ref] = pending.intent.hash;
}

void DeploymentIndex::remove(const PendingIntent& pending) {
  queued_.erase({pending.sequence, pending.intent.index});
  if (!pending.published) return;
  timers_.erase({expired_receipts(pending), pending.intent.hash});
  effect_refs_.erase(pending.effect_ref);
}

void DeploymentIndex::before_fact(const DeploymentState& deployment, const WorkflowFact& fact) {
  const auto settled = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) remove(*pending);
  };
  if (const auto* receipt = std::get_if<ReceiptAdmitted>(&fact.what)) settled(receipt->intent);
  if (const auto* receipt = std::get_if<ReceiptMismatched>(&fact.what)) settled(receipt->intent);
  if (const auto* failed = std::get_if<InstanceFailed>(&fact.what))
    for (const std::string& intent : failed->dropped) settled(intent);
}

void DeploymentIndex::count_mail(const DeploymentState& deployment, const InstanceId& id) {
  const InstanceState* cell = deployment.cell(id);
  const std::size_t mail = cell == nullptr ? 0 : cell->mail.size();
  if (mail >= most_mail_) full_.insert(id);
  if (mail <= most_mail_ / 2) full_.erase(id);
}

void DeploymentIndex::after_fact(const DeploymentState& deployment, const WorkflowFact& fact) {
  for (const InstanceId& id : instances_of(fact)) count_mail(deployment, id);
  const auto changed = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(deployment, intent)) add(*pending);
  };
  if (const auto* step = std::get_if<StepTaken>(&fact.what))
    for (const Intent& intent : step->intents) changed(intent.hash);
  if (const auto* carried = std::get_if<EffectPublished>(&fact.what)) changed(carried->intent);
}

std::string DeploymentIndex::intent_of(const std::string& effect_ref) const {
  const auto found = effect_refs_.find(effect_ref);
  return found == effect_refs_.end() ? "" : found->second;
}

// ---- the world ----

Result<LoadedDeployment> LoadedDeployment::load(WorkflowStore& store, Id context, const std::string& name,
                                                bool from_beginning) {
  LoadedDeployment deployment;
  deployment.context_ = context;
  deployment.name_ = name;
  deployment.state_.id = std::to_string(context) + '/' + name;
  std::optional<LatestSnapshot> latest;
  if (!from_beginning) {
    MJ_TRY(found, latest_snapshot(store, context, name));
    latest = std::move(found);
  }
  if (latest && latest->read.deployment.id == deployment.state_.id) {
    deployment.state_ = std::move(latest->read.deployment);
    deployment.index_ = DeploymentIndex(deployment.state_, kMaxCellMail);
    deployment.snapshot_height_ = latest->height;
    deployment.latest_snapshot_ = latest->hash;
    deployment.pinned_ = blobs_of(deployment.state_);
    deployment.pinned_.merge(latest->read.pages);
  }
  MJ_CHECK(deployment.fold_all(store, deployment.state_.height));
  MJ_CHECK(deployment.load_manifests(store));
  // An earlier coordinator may have left unused blobs. The threshold of 1 starts a collection after the first blob.
  deployment.collect_at_ = 1;
  return deployment;
}

Result<void> LoadedDeployment::fold_one(const WorkflowFact& fact) {
  index_.before_fact(state_, fact);
  if (auto problem = fold(state_, fact))
    return fail(Code::invalid, name_ + ": " + std::string(problem->rule) + ": " + problem->text);
  index_.after_fact(state_, fact);
  return {};
}

Result<void> LoadedDeployment::fold_all(WorkflowStore& store, std::uint64_t after) {
  const auto fold_each = [this](const WorkflowFact& fact) -> Result<bool> {
    MJ_CHECK(fold_one(fact));
    return true;
  };
  MJ_CHECK(for_each_fact(store, context_, name_, after, fold_each));
  base_ = state_.height;
  return {};
}

Result<void> LoadedDeployment::load_manifests(WorkflowStore& store) {
  if (!state_.manifest.empty()) MJ_CHECK(add_manifest(store, state_.manifest));
  std::set<std::string> run;
  for (const auto& [id, cell] : state_.cells) run.insert(cell.manifest);
  for (const std::string& hash : run) MJ_CHECK(add_manifest(store, hash));
  return {};
}

Result<void> LoadedDeployment::add_manifest(WorkflowStore& store, const std::string& hash) {
  if (catalog_.find(hash) != nullptr) return {};
  MJ_TRY(applied, stored_manifest(store, context_, name_, hash));
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

Result<void> LoadedDeployment::decide(const WorkflowInput& input) {
  WorkflowRules rules;
  rules.max_mail = std::numeric_limits<std::size_t>::max();  // the store rejects posts to full instances
  rules.max_snapshot_bytes = most_snapshot_;
  MJ_TRY(decision, mycojobs::decide(state_, catalog_, input, rules));
  std::vector<std::string> encoded;
  for (const WorkflowFact& fact : decision.facts) {
    MJ_TRY(bytes, encode(fact));
    encoded.push_back(std::move(bytes));
  }
  for (const WorkflowFact& fact : decision.facts) {
    MJ_CHECK(fold_one(fact));
    if (const auto* taken = std::get_if<SnapshotTaken>(&fact.what)) {
      snapshot_ = latest_snapshot_ = taken->hash;
      snapshot_height_ = fact.height;
      pinned_ = blobs_of(state_);
      for (const WorkflowBlob& page : decision.blobs) pinned_.insert(page.hash);
    }
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.what)) applied_ = applied->manifest;
  }
  for (std::string& fact : encoded) {
    news_bytes_ += fact.size();
    facts_.push_back(std::move(fact));
  }
  for (WorkflowBlob& blob : decision.blobs) {
    news_bytes_ += blob.bytes.size();
    blobs_[blob.hash] = std::move(blob.bytes);
  }
  return {};
}

Result<StepRequest> LoadedDeployment::request_of(WorkflowStore& store, const InstanceId& id) {
  const auto cell = state_.cells.find(id);
  if (cell == state_.cells.end() || !cell->second.state || !cell->second.state->spilled())
    return mycojobs::request_of(state_, catalog_, id);
  StateRef& state = *cell->second.state;
  const auto own = blobs_.find(state.hash);
  std::string bytes;
  if (own != blobs_.end()) {
    bytes = own->second;
  } else {
    MJ_TRY(stored, store.blob(context_, name_, state.hash));
    bytes = std::move(stored);
  }
  MJ_CHECK(attach(state, std::move(bytes)));
  auto request = mycojobs::request_of(state_, catalog_, id);
  state.bytes.clear();  // The state remains in the blob.
  return request;
}

Result<void> LoadedDeployment::commit(WorkflowStore& store, std::uint64_t due_ms, bool alone,
                                      const std::optional<std::string>& applies) {
  DeploymentCommit wanted;
  wanted.context = context_;
  wanted.deployment = name_;
  wanted.base = base_;
  const DeploymentCommit ahead = wanted;
  wanted.done = done_;
  wanted.snapshot = snapshot_;
  wanted.manifest = applied_;
  wanted.due_ms = due_ms;
  wanted.alone = alone;
  const std::size_t facts = facts_.size();
  const std::uint64_t written = blob_bytes(blobs_);
  MJ_CHECK(write_ahead(store, ahead, blobs_));
  for (auto& [hash, bytes] : blobs_) wanted.blobs.emplace_back(hash, std::move(bytes));
  wanted.facts = std::move(facts_);
  const bool full_moved = stored_full_ != index_.full_instances();
  if (full_moved) {
    wanted.full.emplace();
    for (const InstanceId& id : index_.full_instances()) wanted.full->push_back(store_name(id));
  }
  MJ_CHECK(applies ? commit_manifest(store, wanted, *applies) : store.commit(wanted));
  if (full_moved) stored_full_ = index_.full_instances();
  base_ += facts;
  written_ += written;
  news_bytes_ = 0;
  facts_.clear();
  blobs_.clear();
  done_.clear();
  snapshot_.clear();
  applied_.clear();
  return {};
}

Result<void> LoadedDeployment::collect_garbage_blobs(WorkflowStore& store, std::uint64_t min) {
  std::set<std::string> keep = blobs_of(state_);
  keep.insert(pinned_.begin(), pinned_.end());
  keep.insert(latest_snapshot_);
  std::uint64_t held = 0;
  for (const auto& [id, cell] : state_.cells)
    if (cell.state && cell.state->spilled()) held += cell.state->size;
  written_ = 0;
  collect_at_ = std::max(held, min);
  MJ_TRY(all, store.blobs(context_, name_));
  std::vector<std::string> gone;
  for (std::string& hash : all) {
    if (!keep.contains(hash)) gone.push_back(std::move(hash));
  }
  if (gone.empty()) return {};
  auto dropped = store.drop_blobs(context_, name_, base_, gone);
  return dropped || dropped.error().code == Code::conflict ? Result<void>() : dropped;
}

}  // namespace mycojobs
