// Manifests of workflows, scenarios and histories.
#include <nlohmann/json.hpp>

#include "domain/cbor.h"
#include "domain/codec.h"
#include "domain/workflow_history.h"
#include "domain/workflow_manifest.h"
#include "domain/workflow_scenario.h"
#include "fuzz/targets.h"

namespace mycojobs::fuzz {

using nlohmann::json;

int fuzz_workflow_manifest(std::string_view text) {
  const auto document = parse_json(text, 1U << 20);
  if (!document) return 0;
  const CodeFiles code{{"a.lua", "return {}"}};
  const ManifestRead read = read_manifest(*document, code);
  must((read.manifest != nullptr) == read.problems.empty(), "a manifest has neither a value nor a problem");
  if (!read.manifest) {
    must(!join(read.problems).empty(), "a problem has no text");
    return 0;
  }
  must(read_manifest(*document, code).manifest->hash == read.manifest->hash, "a manifest has two hashes");
  for (const auto& subscription : read.manifest->subscriptions) {
    const auto* workflow = read.manifest->workflow(subscription.workflow);
    must(workflow != nullptr, "events go to a workflow that is not there");
    must(workflow->keyed() != subscription.key_field.empty(), "a keyed workflow gets events without a key");
  }
  for (const auto& workflow : read.manifest->workflows)
    for (const auto& effect : workflow.effects_emitted)
      must(read.manifest->effect(effect) != nullptr, "an effect that is emitted is not declared");
  // What a schema takes has one encoding, which it takes again; and its placeholder is one of its values.
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
  const ScenarioRead read = read_scenarios(*document);
  must(read.file.has_value() == read.problems.empty(), "scenarios are neither read nor refused");
  if (!read.file) return 0;
  must(!read.file->scenarios.empty(), "a file without a scenario was taken");
  (void)manifests_of(*read.file);
  for (const auto& scenario : read.file->scenarios)
    for (const auto& step : scenario.steps) {
      must(step.input != ScenarioInput::none || step.expect, "a step has nothing to do");
      if (!step.value.empty()) must(parse_json(step.value).has_value(), "a value is no JSON");
      if (!step.expect) continue;
      for (const auto& [instance, state] : step.expect->state) {
        const auto value = parse_json(state);
        must(value.has_value(), "a state is no JSON");
        must(!differs(filled(*value, *document), filled(*value, *document)) ||
                 filled(*value, *document).dump().find("$more") != std::string::npos,
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
  must(again && again->facts == read->facts && again->world == read->world, "a history reads otherwise when written");
  (void)catalog_of(*read);
  (void)world_of(*read);
  return 1;
}

}  // namespace mycojobs::fuzz
