#include "workflows/workflow_snapshot.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint64_t kPagesVersion = 2, kSnapshotVersion = 3;

WorkflowBlob make_blob(std::string bytes) {
  std::string hash = sha256_hex(bytes);
  return {std::move(hash), std::move(bytes)};
}

Result<void> check_blob(const std::string& hash, const std::string& bytes) {
  if (sha256_hex(bytes) == hash) return {};
  return fail(Code::invalid, "the blob " + hash + " does not match the hash in its name");
}

// Adds the instances of a page. Pages must be in the order of their instances and must not overlap.
Result<void> add_page(DeploymentState& deployment, const std::string& hash, std::string_view bytes) {
  MJ_TRY(page, decode_deployment(bytes));
  const bool is_page = page.id == deployment.id && page.manifest.empty() && page.height == 0 && page.next_ticket == 0 &&
                       page.refused_receipts == 0 && page.ready_instances.empty() && !page.instances.empty();
  if (!is_page) return fail(Code::invalid, "the blob " + hash + " is not a page of it");
  if (!deployment.instances.empty() && !(deployment.instances.rbegin()->first < page.instances.begin()->first))
    return fail(Code::invalid, "the page " + hash + " does not follow the one before it");
  deployment.instances.merge(page.instances);
  deployment.intents.merge(page.intents);
  deployment.completed_intents.merge(page.completed_intents);
  if (!page.intents.empty() || !page.completed_intents.empty())
    return fail(Code::invalid, "two instances of it have the same intent");
  return {};
}

Result<void> add_cell(DeploymentState& deployment, const CellRow& row) {
  MJ_TRY(instance, decode_instance(row));
  bool is_unique = true;
  for (const auto& [hash, pending] : instance.pending_intents)
    is_unique = deployment.intents.emplace(hash, row.id).second && is_unique;
  for (const auto& hash : instance.completed_intents)
    is_unique =
        !deployment.intents.contains(hash) && deployment.completed_intents.emplace(hash, row.id).second && is_unique;
  if (!is_unique) return fail(Code::invalid, display_name(row.id) + " has an intent of another instance");
  if (!instance.inbox.empty()) return fail(Code::invalid, display_name(row.id) + " has events in its inbox");
  add_instance(deployment, std::move(instance));
  return {};
}

}  // namespace

std::size_t DeploymentSnapshot::bytes() const {
  std::size_t total = root.bytes.size();
  for (const WorkflowBlob& page : pages) total += page.bytes.size();
  return total;
}

Result<WorkflowBlob> make_snapshot_root(const DeploymentState& deployment, const CellIndex& cells) {
  DeploymentState head;
  head.id = deployment.id, head.manifest = deployment.manifest, head.height = deployment.height;
  head.next_ticket = deployment.next_ticket, head.refused_receipts = deployment.refused_receipts;
  MJ_TRY(bytes, encode(head));
  MJ_TRY(root, encode_cbor(json{{"version", kSnapshotVersion},
                                {"head", workflows::to_binary(bytes)},
                                {"cells", workflows::to_binary(cells.encode())}}));
  return make_blob(std::move(root));
}

Result<DeploymentSnapshot> build_snapshot(const DeploymentState& deployment) {
  if (!deployment.ready_instances.empty()) return fail(Code::conflict, "snapshot rejected: instances can take a step");
  CellChanges changes;
  for (const auto& [id, instance] : deployment.instances) {
    MJ_TRY(row, make_cell_row(instance));
    changes.emplace_hint(changes.end(), id, std::move(row));
  }
  CellReader reader;
  MJ_TRY(update, CellIndex().update(reader, std::move(changes)));
  MJ_TRY(root, make_snapshot_root(deployment, update.index));
  return DeploymentSnapshot{std::move(root), std::move(update.blobs)};
}

Result<SnapshotRoot> read_snapshot_root(const std::string& root_hash, const std::string& bytes) {
  MJ_CHECK(check_blob(root_hash, bytes));
  MJ_TRY(map, decode_cbor(bytes));
  if (!map.is_object()) return fail(Code::invalid, "it is not a root of a snapshot");
  workflows::MapReader reader(map, "");
  const std::uint64_t version = reader.number("version");
  if (version != kPagesVersion && version != kSnapshotVersion)
    return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  const std::string head = reader.bytes("head");
  SnapshotRoot root;
  root.has_pages = version == kPagesVersion;
  if (root.has_pages)
    for (const json& entry : reader.list("pages")) {
      if (!entry.is_string()) reader.add_problem("pages", "an entry is not a hash");
      root.pages.push_back(entry.is_string() ? entry.get<std::string>() : "");
    }
  const std::string cells = root.has_pages ? "" : reader.bytes("cells");
  MJ_CHECK(reader.end());
  if (!root.has_pages) {
    MJ_TRY(index, CellIndex::decode(cells));
    root.cells = std::move(index);
  }
  MJ_TRY(decoded, decode_deployment(head));
  if (!decoded.instances.empty()) return fail(Code::invalid, "its head has instances");
  root.head = std::move(decoded);
  return root;
}

Result<ParsedSnapshot> read_snapshot(SnapshotRoot root, const BlobsReader& read) {
  ParsedSnapshot out;
  out.deployment = std::move(root.head);
  if (!root.has_pages) {
    CellReader reader(read);
    const auto wants_all = [](const std::string&, const CellRange&) { return true; };
    const auto visited = root.cells.visit(reader, std::nullopt, wants_all, [&](const CellRow& row) -> Result<bool> {
      if (auto added = add_cell(out.deployment, row); !added) return tl::unexpected<Error>(std::move(added).error());
      return true;
    });
    if (!visited) return tl::unexpected<Error>(visited.error());
    MJ_TRY(blobs, root.cells.list_blobs(reader));
    out.pages = std::move(blobs);
    return out;
  }
  for (const std::string& hash : root.pages) {
    MJ_TRY(page, read({hash}));
    MJ_CHECK(check_blob(hash, page.at(0)));
    MJ_CHECK(add_page(out.deployment, hash, page[0]));
    out.pages.insert(hash);
  }
  return out;
}

Result<ParsedSnapshot> read_snapshot(const std::string& root_hash, const BlobReader& read) {
  MJ_TRY(bytes, read(root_hash));
  MJ_TRY(root, read_snapshot_root(root_hash, bytes));
  return read_snapshot(std::move(root),
                       [&](const std::vector<std::string>& hashes) -> Result<std::vector<std::string>> {
                         std::vector<std::string> blobs;
                         for (const std::string& hash : hashes) {
                           MJ_TRY(blob, read(hash));
                           blobs.push_back(std::move(blob));
                         }
                         return blobs;
                       });
}

}  // namespace mycojobs
