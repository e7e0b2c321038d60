// Fuzz targets for manifests of workflows, scenarios and histories, and for stored snapshots with the facts that follow
// them.
#include <map>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "fuzz/targets.h"
#include "model/codec.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/json.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/tools/scenario.h"
#include "workflows/tools/workflow_history.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs::fuzz {

using nlohmann::json;

int fuzz_workflow_manifest(std::string_view text) {
  const auto document = parse_json(text, 1U << 20);
  if (!document) return 0;
  const CodeFiles code{{"a.lua", "return {}"}};
  const ParsedManifest read = read_manifest(*document, code);
  must((read.manifest != nullptr) == read.problems.empty(), "a manifest has neither a value nor a problem");
  if (!read.manifest) {
    must(!join(read.problems).empty(), "a problem has no text");
    return 0;
  }
  must(read_manifest(*document, code).manifest->hash == read.manifest->hash, "a manifest has two hashes");
  for (const auto& subscription : read.manifest->subscriptions) {
    const auto* workflow = read.manifest->workflow(subscription.workflow);
    must(workflow != nullptr, "events go to a workflow that is not there");
    must(workflow->is_keyed() != subscription.key_field.empty(), "a keyed workflow gets events without a key");
  }
  for (const auto& workflow : read.manifest->workflows)
    for (const auto& effect : workflow.effects_emitted)
      must(read.manifest->effect(effect) != nullptr, "an effect that is emitted is not declared");
  // The placeholder of a schema is a valid value, and its encoding is unique.
  for (const auto& name : read.manifest->schemas.names()) {
    const auto least = read.manifest->schemas.placeholder(name);
    if (!least) continue;
    const auto again = read.manifest->schemas.check_bytes(name, least->bytes);
    must(again && again->bytes == least->bytes, "a placeholder does not fit its schema");
  }
  return 1;
}

int fuzz_workflow_scenario(std::string_view text) {
  const auto document = parse_json(text, 1U << 20);
  if (!document) return 0;
  const ParsedScenarios read = read_scenarios(*document);
  must(read.file.has_value() == read.problems.empty(), "scenarios are neither read nor refused");
  if (!read.file) return 0;
  must(!read.file->scenarios.empty(), "a file without a scenario was taken");
  (void)list_applied_manifests(*read.file);
  for (const auto& scenario : read.file->scenarios)
    for (const auto& step : scenario.steps) {
      must(step.input != ScenarioInput::none || step.expect, "a step has nothing to do");
      if (!step.value.empty()) must(parse_json(step.value).has_value(), "a value is no JSON");
      if (!step.expect) continue;
      for (const auto& [instance, state] : step.expect->states) {
        const auto value = parse_json(state);
        must(value.has_value(), "a state is no JSON");
        must(!find_difference(fill_wildcards(*value, *document), fill_wildcards(*value, *document)) ||
                 fill_wildcards(*value, *document).dump().find("$more") != std::string::npos,
             "a value differs from itself");
      }
    }
  return 1;
}

int fuzz_workflow_history(std::string_view text) {
  const auto read = read_history(text);
  if (!read) return 0;
  const auto written = write_history(*read);
  if (!written) return 0;
  const auto again = read_history(*written);
  must(again && again->facts == read->facts && again->deployment == read->deployment,
       "a history reads otherwise when written");
  (void)build_catalog(*read);
  (void)fold_history(*read);
  return 1;
}

namespace {

std::optional<std::string> to_cbor(const json& value);

// Replaces notations for values that JSON lacks: {"$cbor": VALUE} and {"$text": TEXT} are bytes, and {"$hash": VALUE}
// is the hash of the CBOR encoding.
std::optional<json> filled_in(const json& value) {
  if (value.is_object() && value.size() == 1) {
    const auto& [name, inside] = *value.items().begin();
    if (name == "$text" && inside.is_string()) return workflows::to_binary(inside.get<std::string>());
    if (name == "$cbor" || name == "$hash") {
      const auto bytes = to_cbor(inside);
      if (!bytes) return std::nullopt;
      return name == "$cbor" ? workflows::to_binary(*bytes) : json(sha256_hex(*bytes));
    }
  }
  if (!value.is_structured()) return value;
  json out = value;
  for (auto& each : out) {
    auto made = filled_in(each);
    if (!made) return std::nullopt;
    each = std::move(*made);
  }
  return out;
}

// Returns nothing if the value has no CBOR encoding.
std::optional<std::string> to_cbor(const json& value) {
  const auto made = filled_in(value);
  auto bytes = made ? encode_cbor(*made) : fail(Code::invalid, "");
  return bytes ? std::optional(std::move(*bytes)) : std::nullopt;
}

// Blobs by hash, as in a store.
struct Blobs {
  std::map<std::string, std::string> all;
  // Returns the hash, or "" if the value has no CBOR encoding.
  std::string put(const json& value) {
    const auto bytes = to_cbor(value);
    return bytes ? put(*bytes) : "";
  }
  std::string put(const std::string& bytes) { return all[sha256_hex(bytes)] = bytes, sha256_hex(bytes); }
  Result<ParsedSnapshot> snapshot(const std::string& root) const {
    return read_snapshot(root, [this](const std::string& hash) -> Result<std::string> {
      const auto found = all.find(hash);
      if (found == all.end()) return fail(Code::not_found, hash);
      return found->second;
    });
  }
};

// The indexes match the instances, and the state can be encoded and decoded.
void must_be_whole(const DeploymentState& world) {
  std::size_t pending = 0, settled = 0;
  for (const auto& [id, cell] : world.instances) {
    must(cell.id == id, "an instance stands under another's name");
    pending += cell.pending_intents.size(), settled += cell.completed_intents.size();
    for (const auto& [intent, each] : cell.pending_intents)
      must(world.intents.contains(intent) && world.intents.at(intent) == id, "a pending intent is not in the index");
    for (const auto& intent : cell.completed_intents)
      must(world.completed_intents.contains(intent) && world.completed_intents.at(intent) == id,
           "a settled intent is not in the index");
  }
  must(world.intents.size() == pending && world.completed_intents.size() == settled,
       "two instances have the same intent");
  const auto bytes = encode(world);
  must(bytes.has_value(), "a world that was read cannot be written");
  const auto again = decode_deployment(*bytes);
  must(again && *again == world, "a world reads otherwise when written");
}

void must_fold(DeploymentState& world, const WorkflowFact& fact) {
  const DeploymentState before = world;
  if (const auto problem = fold(world, fact)) {
    must(!problem->rule.empty() && !problem->text.empty(), "a problem has no name");
    return must(world == before, "a fact that does not fit changes the world");
  }
  for (const InstanceId& id : affected_instances(fact)) {
    std::optional<InstanceState> alone;
    if (const InstanceState* cell = before.find_instance(id)) alone = *cell;
    must(!fold(alone, id, fact), "a fact fits the world, and not its instance");
    const InstanceState* cell = world.find_instance(id);
    must(alone ? cell != nullptr && *cell == *alone : cell == nullptr, "an instance alone is another");
  }
  must_be_whole(world);
}

}  // namespace

int fuzz_workflow_snapshot(std::string_view text) {
  constexpr std::size_t kMaxEntries = 64;  // maximum number of pages and of facts
  const auto document = parse_json(text, 1U << 20);
  if (!document || !document->is_object()) return 0;
  const auto part = [&](const char* name) { return document->value(name, json()); };
  const json pages = part("pages"), facts = part("facts");
  if (!pages.is_array() || !facts.is_array() || pages.size() > kMaxEntries || facts.size() > kMaxEntries) return 0;
  Blobs blobs;
  json root{{"version", part("version")}, {"head", {{"$cbor", part("head")}}}, {"pages", json::array()}};
  for (const json& page : pages) root["pages"].push_back(page.is_object() ? json(blobs.put(page)) : page);
  auto read = blobs.snapshot(blobs.put(root));
  if (!read) return 0;
  must_be_whole(read->deployment);
  const auto written = build_snapshot(read->deployment);
  must(written.has_value(), "what was a snapshot has none");
  for (const auto& page : written->pages) blobs.put(page.bytes);
  const auto again = blobs.snapshot(blobs.put(written->root.bytes));
  must(again && again->deployment == read->deployment, "a snapshot reads otherwise when written");
  for (const json& each : facts) {
    const std::string bytes = blobs.all[blobs.put(each)];
    const auto fact = decode_workflow_fact(bytes);
    if (!fact) return 0;
    must(encode(*fact).value_or("") == bytes, "a fact reads otherwise when written");
    must_fold(read->deployment, *fact);
  }
  return 1;
}

}  // namespace mycojobs::fuzz
