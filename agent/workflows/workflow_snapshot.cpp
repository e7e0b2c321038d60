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
std::size_t estimate_size(const InstanceState& instance) {
  std::size_t bytes = 256 + instance.id.workflow.size() + instance.id.key.size() + instance.message.size() +
                      66 * instance.completed_intents.size();
  if (instance.state) bytes += 100 + instance.state->bytes.size();
  for (const auto& [hash, pending] : instance.pending_intents) bytes += 300 + pending.intent.params.size();
  return bytes;
}

WorkflowBlob make_blob(std::string bytes) {
  std::string hash = sha256_hex(bytes);
  return {std::move(hash), std::move(bytes)};
}

Result<std::string> read_checked_blob(const std::string& hash, const BlobReader& read) {
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
  workflows::MapReader reader(map, "");
  const std::uint64_t version = reader.number("version");
  const std::string head = reader.bytes("head");
  SnapshotRoot root;
  for (const json& entry : reader.list("pages")) {
    if (!entry.is_string()) reader.add_problem("pages", "an entry is not a hash");
    root.pages.push_back(entry.is_string() ? entry.get<std::string>() : "");
  }
  MJ_CHECK(reader.end());
  if (version != kSnapshotVersion) return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  MJ_TRY(decoded, decode_deployment(head));
  if (!decoded.instances.empty()) return fail(Code::invalid, "its head has instances");
  root.head = std::move(decoded);
  return root;
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

}  // namespace

std::size_t DeploymentSnapshot::bytes() const {
  std::size_t total = root.bytes.size();
  for (const WorkflowBlob& page : pages) total += page.bytes.size();
  return total;
}

Result<DeploymentSnapshot> build_snapshot(const DeploymentState& deployment, std::size_t page_bytes) {
  if (!deployment.ready_instances.empty()) return fail(Code::conflict, "snapshot rejected: instances can take a step");
  DeploymentSnapshot out;
  json pages = json::array();
  for (auto instance = deployment.instances.begin(); instance != deployment.instances.end();) {
    DeploymentState page;
    page.id = deployment.id;
    for (std::size_t bytes = 0; instance != deployment.instances.end() && bytes < page_bytes; ++instance) {
      bytes += estimate_size(instance->second);
      page.instances.emplace_hint(page.instances.end(), *instance);
    }
    MJ_TRY(bytes, encode(page));
    out.pages.push_back(make_blob(std::move(bytes)));
    pages.push_back(out.pages.back().hash);
  }
  DeploymentState head;
  head.id = deployment.id, head.manifest = deployment.manifest, head.height = deployment.height;
  head.next_ticket = deployment.next_ticket, head.refused_receipts = deployment.refused_receipts;
  MJ_TRY(bytes, encode(head));
  MJ_TRY(root,
         encode_cbor(json{{"version", kSnapshotVersion}, {"head", workflows::to_binary(bytes)}, {"pages", pages}}));
  out.root = make_blob(std::move(root));
  return out;
}

Result<ParsedSnapshot> read_snapshot(const std::string& root_hash, const BlobReader& read) {
  MJ_TRY(bytes, read_checked_blob(root_hash, read));
  MJ_TRY(root, read_root(bytes));
  ParsedSnapshot out;
  out.deployment = std::move(root.head);
  for (const std::string& hash : root.pages) {
    MJ_TRY(page, read_checked_blob(hash, read));
    MJ_CHECK(add_page(out.deployment, hash, page));
    out.pages.insert(hash);
  }
  return out;
}

}  // namespace mycojobs
