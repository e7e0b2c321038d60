#include "workflows/workflow_snapshot.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint64_t kSnapshotVersion = 2;

// Returns the approximate size of the instance in a page.
std::size_t weight_of(const InstanceState& cell) {
  std::size_t bytes =
      256 + cell.id.workflow.size() + cell.id.key.size() + cell.message.size() + 66 * cell.settled.size();
  if (cell.state) bytes += 100 + cell.state->bytes.size();
  for (const auto& [hash, pending] : cell.pending) bytes += 300 + pending.intent.params.size();
  return bytes;
}

WorkflowBlob named(std::string bytes) {
  std::string hash = sha256_hex(bytes);
  return {std::move(hash), std::move(bytes)};
}

Result<std::string> read_named(const std::string& hash, const BlobReader& read) {
  MJ_TRY(bytes, read(hash));
  if (sha256_hex(bytes) != hash)
    return fail(Code::invalid, "the blob " + hash + " does not match the hash in its name");
  return std::move(bytes);
}

struct SnapshotRoot {
  DeploymentState head;
  std::vector<std::string> pages;
};
Result<SnapshotRoot> read_root(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes));
  if (!map.is_object()) return fail(Code::invalid, "it is not a root of a snapshot");
  workflows::MapReader take(map, "");
  const std::uint64_t version = take.number("version");
  const std::string head = take.bytes("head");
  SnapshotRoot root;
  for (const json& each : take.list("pages")) {
    if (!each.is_string()) take.wrong("pages", "an entry is not a hash");
    root.pages.push_back(each.is_string() ? each.get<std::string>() : "");
  }
  MJ_CHECK(take.end());
  if (version != kSnapshotVersion) return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  MJ_TRY(decoded, decode_deployment(head));
  if (!decoded.cells.empty()) return fail(Code::invalid, "its head has instances");
  root.head = std::move(decoded);
  return root;
}

// Adds the instances of a page. Pages must be in the order of their instances and must not overlap.
Result<void> add_page(DeploymentState& deployment, const std::string& hash, std::string_view bytes) {
  MJ_TRY(page, decode_deployment(bytes));
  const bool bare = page.id == deployment.id && page.manifest.empty() && page.height == 0 && page.next_ticket == 0 &&
                    page.refused == 0 && page.ready.empty() && !page.cells.empty();
  if (!bare) return fail(Code::invalid, "the blob " + hash + " is not a page of it");
  if (!deployment.cells.empty() && !(deployment.cells.rbegin()->first < page.cells.begin()->first))
    return fail(Code::invalid, "the page " + hash + " does not follow the one before it");
  deployment.cells.merge(page.cells);
  deployment.intents.merge(page.intents);
  deployment.settled.merge(page.settled);
  if (!page.intents.empty() || !page.settled.empty())
    return fail(Code::invalid, "two instances of it have the same intent");
  return {};
}

}  // namespace

std::size_t DeploymentSnapshot::bytes() const {
  std::size_t all = root.bytes.size();
  for (const WorkflowBlob& page : pages) all += page.bytes.size();
  return all;
}

Result<DeploymentSnapshot> snapshot_of(const DeploymentState& deployment, std::size_t page_bytes) {
  if (!deployment.ready.empty()) return fail(Code::conflict, "snapshot rejected: instances can take a step");
  DeploymentSnapshot out;
  json pages = json::array();
  for (auto cell = deployment.cells.begin(); cell != deployment.cells.end();) {
    DeploymentState page;
    page.id = deployment.id;
    for (std::size_t bytes = 0; cell != deployment.cells.end() && bytes < page_bytes; ++cell) {
      bytes += weight_of(cell->second);
      page.cells.emplace_hint(page.cells.end(), *cell);
    }
    MJ_TRY(bytes, encode(page));
    out.pages.push_back(named(std::move(bytes)));
    pages.push_back(out.pages.back().hash);
  }
  DeploymentState head;
  head.id = deployment.id, head.manifest = deployment.manifest, head.height = deployment.height;
  head.next_ticket = deployment.next_ticket, head.refused = deployment.refused;
  MJ_TRY(bytes, encode(head));
  MJ_TRY(root, encode_cbor(json{{"version", kSnapshotVersion}, {"head", workflows::binary(bytes)}, {"pages", pages}}));
  out.root = named(std::move(root));
  return out;
}

Result<ParsedSnapshot> read_snapshot(const std::string& root_hash, const BlobReader& read) {
  MJ_TRY(bytes, read_named(root_hash, read));
  MJ_TRY(root, read_root(bytes));
  ParsedSnapshot out;
  out.deployment = std::move(root.head);
  for (const std::string& hash : root.pages) {
    MJ_TRY(page, read_named(hash, read));
    MJ_CHECK(add_page(out.deployment, hash, page));
    out.pages.insert(hash);
  }
  return out;
}

}  // namespace mycojobs
