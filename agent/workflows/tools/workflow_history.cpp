#include "workflows/tools/workflow_history.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "model/codec.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxLine = 64U << 20;

Result<void> text_only(const std::string& text, const std::string& what) {
  if (is_utf8(text)) return {};
  return fail(Code::invalid, what + " is not UTF-8");
}

Result<std::string> bytes_at(const json& line, const char* name) {
  const auto found = line.find(name);
  const auto bytes =
      found != line.end() && found->is_string() ? decode_base64(found->get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) return fail(Code::invalid, std::string(name) + " is not base64");
  return *bytes;
}

Result<void> read_head(const json& line, WorkflowHistory& out) {
  if (line.value("workflow_history", json()) != 1) return fail(Code::invalid, "it is not a history of workflows");
  if (line.value("world", json()).is_string()) out.deployment = line["world"].get<std::string>();
  const json manifests = line.value("manifests", json());
  if (out.deployment.empty() || !manifests.is_array())
    return fail(Code::invalid, "it names its world and its manifests");
  for (const auto& each : manifests) {
    if (!each.is_object() || !each.contains("manifest") || !each.value("code", json()).is_object())
      return fail(Code::invalid, "each of its manifests has manifest and code");
    HistoryManifest made{dump_json(each["manifest"]), {}};
    for (const auto& [module, text] : each["code"].items()) {
      if (!text.is_string()) return fail(Code::invalid, "the code of " + excerpt(module) + " is not text");
      made.code[module] = text.get<std::string>();
    }
    out.manifests.push_back(std::move(made));
  }
  return {};
}

Result<void> read_line(const json& line, WorkflowHistory& out) {
  if (!line.is_object()) return fail(Code::invalid, "it is not a map");
  if (out.deployment.empty()) return read_head(line, out);
  if (line.contains("blob")) {
    MJ_TRY(blob, bytes_at(line, "blob"));
    out.blobs.insert(std::move(blob));
    return {};
  }
  MJ_TRY(bytes, bytes_at(line, "fact"));
  MJ_TRY(fact, decode_workflow_fact(bytes));
  out.facts.push_back(std::move(fact));
  return {};
}

void bring_back(WorkflowHistory& history) {
  std::map<std::string, const std::string*> by_hash;
  for (const auto& blob : history.blobs) by_hash[sha256_hex(blob)] = &blob;
  for (auto& fact : history.facts) {
    auto* step = std::get_if<StepTaken>(&fact.what);
    if (step == nullptr || !step->state || !step->state->spilled()) continue;
    if (const auto found = by_hash.find(step->state->hash); found != by_hash.end()) step->state->bytes = *found->second;
  }
}

}  // namespace

Result<std::string> write_history(const WorkflowHistory& history) {
  json head{{"workflow_history", 1}, {"world", history.deployment}, {"manifests", json::array()}};
  for (const auto& each : history.manifests) {
    MJ_TRY(document, parse_json(each.json));
    for (const auto& [module, text] : each.code) MJ_CHECK(text_only(text, module));
    head["manifests"].push_back({{"manifest", std::move(document)}, {"code", each.code}});
  }
  std::string out = dump_json(head) + '\n';
  for (const auto& blob : history.blobs) out += dump_json({{"blob", encode_base64(blob)}}) + '\n';
  for (const auto& fact : history.facts) {
    MJ_TRY(bytes, encode(fact));
    json line{{"height", fact.height}, {"at_ms", fact.at_ms}, {"kind", kind_of(fact)}, {"cells", json::array()}};
    for (const auto& cell : instances_of(fact)) line["cells"].push_back(shown(cell));
    line["fact"] = encode_base64(bytes);
    out += dump_json(line) + '\n';
  }
  return out;
}

Result<WorkflowHistory> read_history(std::string_view text) {
  WorkflowHistory history;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.empty()) continue;
    auto parsed = parse_json(line, kMaxLine);
    auto read = parsed ? read_line(*parsed, history) : Result<void>(tl::unexpected(parsed.error()));
    if (!read) return fail(Code::invalid, "line " + std::to_string(number) + ": " + read.error().message);
  }
  if (history.deployment.empty()) return fail(Code::invalid, "it is not a history of workflows: it is empty");
  bring_back(history);
  return history;
}

Result<ManifestCatalog> catalog_of(const WorkflowHistory& history) {
  ManifestCatalog catalog;
  for (const auto& each : history.manifests) {
    MJ_TRY(document, parse_json(each.json));
    auto read = read_manifest(document, each.code);
    if (!read.manifest) return fail(Code::invalid, "a manifest of the history: " + join(read.problems));
    catalog.add(std::move(read.manifest));
  }
  return catalog;
}

Result<DeploymentState> deployment_of(const WorkflowHistory& history) {
  DeploymentState deployment;
  deployment.id = history.deployment;
  for (const auto& fact : history.facts)
    if (const auto bad = fold(deployment, fact))
      return fail(Code::invalid, "the history does not fit: " + bad->text + " (" + std::string(bad->rule) + ')');
  return deployment;
}

}  // namespace mycojobs
