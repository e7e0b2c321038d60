#include "coordinator/world.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "domain/cbor.h"
#include "domain/codec.h"
#include "domain/workflow_snapshot.h"
#include "store/redis_workflows.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsAtOnce = 1000;
constexpr std::uint64_t kBlobsAtOnce = 4U << 20;  // bytes of one commit; a Redis command is limited to 256 MiB

std::uint64_t blob_bytes(const std::map<std::string, std::string>& blobs) {
  std::uint64_t bytes = 0;
  for (const auto& [hash, blob] : blobs) bytes += blob.size();
  return bytes;
}

// Writes blobs that do not fit into one commit ahead of it. After a crash in between, these blobs belong to no state,
// but the deployment is due, so the next collection deletes them.
Result<void> write_ahead(WorkflowStore& store, WorldCommit part, std::map<std::string, std::string>& blobs) {
  part.due_ms = 1;
  for (std::uint64_t left = blob_bytes(blobs); left > kBlobsAtOnce;) {
    part.blobs.clear();
    for (std::uint64_t bytes = 0; bytes < kBlobsAtOnce && !blobs.empty();) {
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
  SnapshotRead read;
};
Result<std::optional<LatestSnapshot>> latest_snapshot(WorkflowStore& store, Id context, const std::string& name) {
  for (std::string before;;) {
    MJ_TRY(head, store.read(context, name, 0, 0));
    // Another snapshot may have replaced this one while its pages were read. Try the latest one again.
    if (head.snapshot_height == 0 || head.snapshot_height > head.height || head.snapshot == before)
      return std::optional<LatestSnapshot>();
    auto read = read_snapshot(head.snapshot, [&](const std::string& hash) { return store.blob(context, name, hash); });
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(read).error());
    if (read && read->world.height < head.snapshot_height)
      return std::optional(LatestSnapshot{std::move(head.snapshot), head.snapshot_height, std::move(*read)});
    before = std::move(head.snapshot);
  }
}

}  // namespace

ManifestText manifest_text(const json& manifest, const CodeFiles& code, Id owner) {
  ManifestText out;
  ManifestRead read = read_manifest(manifest, code, ManifestUse::offered);
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
  ManifestRead read = read_manifest(object["manifest"], std::move(code));
  if (!read.manifest) return fail(Code::invalid, "the stored manifest: " + join(read.problems));
  const json owner = object.value("owner", json(0));
  return AppliedManifest{std::move(read.manifest), owner.is_number_unsigned() ? owner.get<Id>() : 0};
}

Result<AppliedManifest> stored_manifest(WorkflowStore& store, Id context, const std::string& world,
                                        const std::string& hash) {
  MJ_TRY(text, store.manifest(context, world, hash));
  MJ_TRY(applied, read_applied(text));
  if (applied.manifest->hash != hash)
    return fail(Code::invalid, world + ": manifest " + hash + " is stored with other content");
  return applied;
}

Result<void> each_fact(WorkflowStore& store, Id context, const std::string& world, std::uint64_t after,
                       const std::function<Result<bool>(WorkflowFact)>& see) {
  for (;;) {
    MJ_TRY(read, store.read(context, world, after, kFactsAtOnce));
    for (const std::string& bytes : read.facts) {
      ++after;
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), world + ": height " + std::to_string(after));
      MJ_TRY(more, see(std::move(*fact)));
      if (!more) return {};
    }
    if (after >= read.height) return {};
    if (read.facts.empty())
      return fail(Code::invalid, world + ": the fact at height " + std::to_string(after + 1) + " is missing");
  }
}

const PendingIntent* find_pending(const WorldState& world, const std::string& intent) {
  const auto cell = world.intents.find(intent);
  const CellState* state = cell == world.intents.end() ? nullptr : world.cell(cell->second);
  if (state == nullptr) return nullptr;
  const auto found = state->pending.find(intent);
  return found == state->pending.end() ? nullptr : &found->second;
}

// ---- the index ----

WorldIndex::WorldIndex(const WorldState& world, std::size_t most_mail) : most_mail_(most_mail) {
  for (const auto& [ticket, id] : world.ready) count_mail(world, id);
  for (const auto& [intent, cell] : world.intents) {
    if (const PendingIntent* pending = find_pending(world, intent)) add(*pending);
  }
}

void WorldIndex::add(const PendingIntent& pending) {
  if (!pending.published) {
    queued_[{pending.sequence, pending.intent.index}] = pending.intent.hash;
    return;
  }
  queued_.erase({pending.sequence, pending.intent.index});
  if (const std::uint64_t at = settled_by_time(pending); at != 0) timers_.emplace(at, pending.intent.hash);
  if (pending.carrier.find(':') != std::string::npos) carriers_[pending.carrier] = pending.intent.hash;
}

void WorldIndex::remove(const PendingIntent& pending) {
  queued_.erase({pending.sequence, pending.intent.index});
  if (!pending.published) return;
  timers_.erase({settled_by_time(pending), pending.intent.hash});
  carriers_.erase(pending.carrier);
}

void WorldIndex::before(const WorldState& world, const WorkflowFact& fact) {
  const auto settled = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(world, intent)) remove(*pending);
  };
  if (const auto* receipt = std::get_if<ReceiptAdmitted>(&fact.what)) settled(receipt->intent);
  if (const auto* receipt = std::get_if<ReceiptFaulted>(&fact.what)) settled(receipt->intent);
  if (const auto* failed = std::get_if<Failed>(&fact.what))
    for (const std::string& intent : failed->dropped) settled(intent);
}

void WorldIndex::count_mail(const WorldState& world, const CellId& id) {
  const CellState* cell = world.cell(id);
  const std::size_t mail = cell == nullptr ? 0 : cell->mail.size();
  if (mail >= most_mail_) full_.insert(id);
  if (mail <= most_mail_ / 2) full_.erase(id);
}

void WorldIndex::after(const WorldState& world, const WorkflowFact& fact) {
  for (const CellId& id : cells_of(fact)) count_mail(world, id);
  const auto changed = [&](const std::string& intent) {
    if (const PendingIntent* pending = find_pending(world, intent)) add(*pending);
  };
  if (const auto* step = std::get_if<StepTaken>(&fact.what))
    for (const Intent& intent : step->intents) changed(intent.hash);
  if (const auto* carried = std::get_if<EffectPublished>(&fact.what)) changed(carried->intent);
}

std::string WorldIndex::intent_of(const std::string& carrier) const {
  const auto found = carriers_.find(carrier);
  return found == carriers_.end() ? "" : found->second;
}

// ---- the world ----

Result<LoadedWorld> LoadedWorld::load(WorkflowStore& store, Id context, const std::string& name, bool from_beginning) {
  LoadedWorld world;
  world.context_ = context;
  world.name_ = name;
  world.state_.id = std::to_string(context) + '/' + name;
  std::optional<LatestSnapshot> latest;
  if (!from_beginning) {
    MJ_TRY(found, latest_snapshot(store, context, name));
    latest = std::move(found);
  }
  if (latest && latest->read.world.id == world.state_.id) {
    world.state_ = std::move(latest->read.world);
    world.index_ = WorldIndex(world.state_, kMaxCellMail);
    world.snapshot_height_ = latest->height;
    world.latest_snapshot_ = latest->hash;
    world.pinned_ = blobs_of(world.state_);
    world.pinned_.merge(latest->read.pages);
  }
  MJ_CHECK(world.fold_all(store, world.state_.height));
  MJ_CHECK(world.know_all(store));
  // An earlier coordinator may have left unused blobs. The threshold of 1 starts a collection after the first blob.
  world.collect_at_ = 1;
  return world;
}

Result<void> LoadedWorld::fold_one(const WorkflowFact& fact) {
  index_.before(state_, fact);
  if (auto problem = fold(state_, fact))
    return fail(Code::invalid, name_ + ": " + std::string(problem->rule) + ": " + problem->text);
  index_.after(state_, fact);
  return {};
}

Result<void> LoadedWorld::fold_all(WorkflowStore& store, std::uint64_t after) {
  const auto fold_each = [this](const WorkflowFact& fact) -> Result<bool> {
    MJ_CHECK(fold_one(fact));
    return true;
  };
  MJ_CHECK(each_fact(store, context_, name_, after, fold_each));
  base_ = state_.height;
  return {};
}

Result<void> LoadedWorld::know_all(WorkflowStore& store) {
  if (!state_.manifest.empty()) MJ_CHECK(know(store, state_.manifest));
  std::set<std::string> run;
  for (const auto& [id, cell] : state_.cells) run.insert(cell.manifest);
  for (const std::string& hash : run) MJ_CHECK(know(store, hash));
  return {};
}

Result<void> LoadedWorld::know(WorkflowStore& store, const std::string& hash) {
  if (catalog_.find(hash) != nullptr) return {};
  MJ_TRY(applied, stored_manifest(store, context_, name_, hash));
  know(std::move(applied));
  return {};
}

void LoadedWorld::know(AppliedManifest applied) {
  if (!owners_.emplace(applied.manifest->hash, applied.owner).second) return;
  catalog_.add(std::move(applied.manifest));
}

Id LoadedWorld::owner_of(const std::string& hash) const {
  const auto found = owners_.find(hash);
  return found == owners_.end() ? 0 : found->second;
}

Result<void> LoadedWorld::decide(const WorkflowInput& input) {
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
    if (const auto* applied = std::get_if<Applied>(&fact.what)) applied_ = applied->manifest;
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

Result<StepRequest> LoadedWorld::request_of(WorkflowStore& store, const CellId& id) {
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

Result<void> LoadedWorld::commit(WorkflowStore& store, std::uint64_t due_ms, bool alone,
                                 const std::optional<std::string>& applies) {
  WorldCommit wanted;
  wanted.context = context_;
  wanted.world = name_;
  wanted.base = base_;
  const WorldCommit ahead = wanted;
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
  const bool full_moved = stored_full_ != index_.full();
  if (full_moved) {
    wanted.full.emplace();
    for (const CellId& id : index_.full()) wanted.full->push_back(store_name(id));
  }
  MJ_CHECK(applies ? commit_manifest(store, wanted, *applies) : store.commit(wanted));
  if (full_moved) stored_full_ = index_.full();
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

Result<void> LoadedWorld::collect(WorkflowStore& store, std::uint64_t least) {
  std::set<std::string> keep = blobs_of(state_);
  keep.insert(pinned_.begin(), pinned_.end());
  keep.insert(latest_snapshot_);
  std::uint64_t held = 0;
  for (const auto& [id, cell] : state_.cells)
    if (cell.state && cell.state->spilled()) held += cell.state->size;
  written_ = 0;
  collect_at_ = std::max(held, least);
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
