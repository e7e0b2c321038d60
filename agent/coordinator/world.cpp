#include "coordinator/world.h"

#include <nlohmann/json.hpp>
#include <set>

#include "domain/codec.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsAtOnce = 1000;

Result<AppliedManifest> read_applied(const std::string& text) {
  MJ_TRY(object, parse_json(text));
  if (!object.is_object() || !object.contains("manifest")) return fail(Code::invalid, "the stored manifest is none");
  CodeFiles code;
  for (const auto& [module, source] : object.value("code", json::object()).items()) {
    if (source.is_string()) code.emplace(module, source.get<std::string>());
  }
  ManifestRead read = read_manifest(object["manifest"], std::move(code));
  if (!read.manifest) return fail(Code::invalid, "the stored manifest: " + join(read.problems));
  const json owner = object.value("owner", json(0));
  return AppliedManifest{std::move(read.manifest), owner.is_number_unsigned() ? owner.get<Id>() : 0};
}

}  // namespace

ManifestText manifest_text(const json& manifest, const CodeFiles& code, Id owner) {
  ManifestText out;
  ManifestRead read = read_manifest(manifest, code);
  out.problems = std::move(read.problems);
  if (!read.manifest) return out;
  out.manifest = std::move(read.manifest);
  out.hash = out.manifest->hash;
  json files = json::object();
  for (const auto& [module, source] : code) files[module] = source;
  out.text = dump_json({{"manifest", manifest}, {"code", std::move(files)}, {"owner", owner}});
  return out;
}

Result<LoadedWorld> LoadedWorld::load(WorkflowStore& store, Id context, const std::string& name, bool from_beginning) {
  LoadedWorld world;
  world.context_ = context;
  world.name_ = name;
  world.state_.id = std::to_string(context) + '/' + name;
  MJ_TRY(head, store.read(context, name, UINT32_MAX, 1));
  if (!from_beginning && head.snapshot_height > 0 && head.snapshot_height <= head.height) {
    auto bytes = store.blob(context, name, head.snapshot);
    if (!bytes && bytes.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(bytes).error());
    auto decoded = bytes ? decode_world(*bytes) : Result<WorldState>(tl::unexpected<Error>(bytes.error()));
    // One that cannot be read shortens nothing; the journal has it all. The fact that it was taken follows it.
    if (decoded && decoded->height < head.snapshot_height) world.state_ = std::move(*decoded);
  }
  MJ_CHECK(world.fold_all(store, world.state_.height));
  MJ_CHECK(world.know_all(store));
  return world;
}

Result<void> LoadedWorld::catch_up(WorkflowStore& store) {
  const std::uint64_t before = state_.height;
  MJ_CHECK(fold_all(store, before));
  return state_.height == before ? Result<void>() : know_all(store);
}

Result<void> LoadedWorld::fold_all(WorkflowStore& store, std::uint64_t after) {
  while (true) {
    MJ_TRY(read, store.read(context_, name_, after, kFactsAtOnce));
    for (const std::string& bytes : read.facts) {
      ++after;
      auto fact = decode_workflow_fact(bytes);
      if (!fact) return fail(fact.error(), name_ + ": height " + std::to_string(after));
      if (auto problem = fold(state_, *fact))
        return fail(Code::invalid, name_ + ": " + std::string(problem->rule) + ": " + problem->text);
    }
    if (read.facts.size() < kFactsAtOnce) break;
  }
  base_ = state_.height;
  return {};
}

Result<void> LoadedWorld::know_all(WorkflowStore& store) {
  if (!state_.manifest.empty()) MJ_CHECK(know(store, state_.manifest));
  for (const auto& [id, cell] : state_.cells) MJ_CHECK(know(store, cell.manifest));
  return {};
}

Result<void> LoadedWorld::know(WorkflowStore& store, const std::string& hash) {
  if (catalog_.find(hash) != nullptr) return {};
  MJ_TRY(text, store.manifest(context_, name_, hash));
  MJ_TRY(applied, read_applied(text));
  if (applied.manifest->hash != hash)
    return fail(Code::invalid, name_ + ": manifest " + hash + " is stored with other content");
  owners_[hash] = applied.owner;
  catalog_.add(applied.manifest);
  return {};
}

Id LoadedWorld::owner_of(const std::string& hash) const {
  const auto found = owners_.find(hash);
  return found == owners_.end() ? 0 : found->second;
}

Result<WorkflowDecision> LoadedWorld::decide(const WorkflowInput& input) {
  MJ_TRY(decision, mycojobs::decide(state_, catalog_, input));
  MJ_CHECK(mycojobs::commit(state_, decision));
  facts_.insert(facts_.end(), decision.facts.begin(), decision.facts.end());
  for (const WorkflowBlob& blob : decision.blobs) blobs_[blob.hash] = blob.bytes;
  for (const WorkflowFact& fact : decision.facts) {
    if (const auto* taken = std::get_if<SnapshotTaken>(&fact.what)) snapshot_ = taken->hash;
  }
  return decision;
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
  state.bytes.clear();  // it lies in the blob
  return request;
}

Result<void> LoadedWorld::commit(WorkflowStore& store, std::uint64_t due_ms) {
  WorldCommit wanted{context_, name_, base_, {}, {blobs_.begin(), blobs_.end()}, done_, snapshot_, due_ms};
  for (const WorkflowFact& fact : facts_) {
    MJ_TRY(bytes, encode(fact));
    wanted.facts.push_back(std::move(bytes));
  }
  MJ_CHECK(store.commit(wanted));
  base_ += facts_.size();
  facts_.clear();
  blobs_.clear();
  done_.clear();
  snapshot_.clear();
  return {};
}

}  // namespace mycojobs
