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

constexpr std::size_t kMaxHistoryLineBytes = 64U << 20;

Result<void> check_text_encoding(const std::string& text, const std::string& label) {
  if (is_utf8(text)) return {};
  return fail(Code::invalid, label + " is not UTF-8");
}

Result<std::string> read_base64_field(const json& line, const char* name) {
  const auto field = line.find(name);
  const auto bytes =
      field != line.end() && field->is_string() ? decode_base64(field->get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) return fail(Code::invalid, std::string(name) + " is not base64");
  return *bytes;
}

Result<void> read_head(const json& line, WorkflowHistory& out) {
  if (line.value("workflow_history", json()) != 1) return fail(Code::invalid, "it is not a history of workflows");
  if (line.value("world", json()).is_string()) out.deployment = line["world"].get<std::string>();
  const json manifests = line.value("manifests", json());
  if (out.deployment.empty() || !manifests.is_array())
    return fail(Code::invalid, "it names its world and its manifests");
  for (const auto& item : manifests) {
    if (!item.is_object() || !item.contains("manifest") || !item.value("code", json()).is_object())
      return fail(Code::invalid, "each of its manifests has manifest and code");
    HistoryManifest entry{dump_json(item["manifest"]), {}};
    for (const auto& [module, text] : item["code"].items()) {
      if (!text.is_string()) return fail(Code::invalid, "the code of " + excerpt(module) + " is not text");
      entry.code[module] = text.get<std::string>();
    }
    out.manifests.push_back(std::move(entry));
  }
  return {};
}

Result<void> read_line(const json& line, WorkflowHistory& out) {
  if (!line.is_object()) return fail(Code::invalid, "it is not a map");
  if (out.deployment.empty()) return read_head(line, out);
  if (line.contains("blob")) {
    MJ_TRY(blob, read_base64_field(line, "blob"));
    out.blobs.insert(std::move(blob));
    return {};
  }
  MJ_TRY(bytes, read_base64_field(line, "fact"));
  MJ_TRY(fact, decode_workflow_fact(bytes));
  out.facts.push_back(std::move(fact));
  return {};
}

void restore_spilled_states(WorkflowHistory& history) {
  std::map<std::string, const std::string*> by_hash;
  for (const auto& blob : history.blobs) by_hash[sha256_hex(blob)] = &blob;
  for (auto& fact : history.facts) {
    auto* step = std::get_if<StepTaken>(&fact.content);
    if (step == nullptr || !step->state || !step->state->is_spilled()) continue;
    if (const auto field = by_hash.find(step->state->hash); field != by_hash.end()) step->state->bytes = *field->second;
  }
}

}  // namespace

Result<std::string> write_history(const WorkflowHistory& history) {
  json head{{"workflow_history", 1}, {"world", history.deployment}, {"manifests", json::array()}};
  for (const auto& manifest : history.manifests) {
    MJ_TRY(document, parse_json(manifest.json));
    for (const auto& [module, text] : manifest.code) MJ_CHECK(check_text_encoding(text, module));
    head["manifests"].push_back({{"manifest", std::move(document)}, {"code", manifest.code}});
  }
  std::string out = dump_json(head) + '\n';
  for (const auto& blob : history.blobs) out += dump_json({{"blob", encode_base64(blob)}}) + '\n';
  for (const auto& fact : history.facts) {
    MJ_TRY(bytes, encode(fact));
    json line{{"height", fact.height}, {"at_ms", fact.at_ms}, {"kind", fact_kind(fact)}, {"cells", json::array()}};
    for (const auto& instance : affected_instances(fact)) line["cells"].push_back(display_name(instance));
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
    auto parsed = parse_json(line, kMaxHistoryLineBytes);
    auto result = parsed ? read_line(*parsed, history) : Result<void>(tl::unexpected(parsed.error()));
    if (!result) return fail(Code::invalid, "line " + std::to_string(number) + ": " + result.error().message);
  }
  if (history.deployment.empty()) return fail(Code::invalid, "it is not a history of workflows: it is empty");
  restore_spilled_states(history);
  return history;
}

Result<ManifestCatalog> build_catalog(const WorkflowHistory& history) {
  ManifestCatalog catalog;
  for (const auto& manifest : history.manifests) {
    MJ_TRY(document, parse_json(manifest.json));
    auto parsed = read_manifest(document, manifest.code);
    if (!parsed.manifest) return fail(Code::invalid, "a manifest of the history: " + join(parsed.problems));
    catalog.add(std::move(parsed.manifest));
  }
  return catalog;
}

Result<DeploymentState> fold_history(const WorkflowHistory& history) {
  DeploymentState deployment;
  deployment.id = history.deployment;
  for (const auto& fact : history.facts)
    if (const auto problem = fold(deployment, fact))
      return fail(Code::invalid,
                  "the history does not fit: " + problem->text + " (" + std::string(problem->rule) + ')');
  return deployment;
}

}  // namespace mycojobs
