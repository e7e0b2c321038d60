// Fuzz targets for definitions of flows.
#include <nlohmann/json.hpp>

#include "flows/flow_plan.h"
#include "flows/flow_yaml.h"
#include "fuzz/targets.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs::fuzz {
namespace {

using nlohmann::json;

int check_plan(const json& definition) {
  const ParsedPlan read = read_plan(definition);
  must(read.plan.has_value() == read.problems.empty(), "a definition has neither a plan nor a problem");
  if (!read.plan) {
    must(!join(read.problems).empty(), "a problem has no text");
    return 0;
  }
  const FlowPlan& plan = *read.plan;
  must(plan.nodes.size() <= kMaxFlowNodes, "a plan has too many nodes");
  const auto again = parse_stored_plan(plan.canonical, plan.hash);
  must(again.has_value(), "a plan that was stored is refused");
  must(again->canonical == plan.canonical && again->nodes.size() == plan.nodes.size(), "a stored plan reads otherwise");
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    for (const std::uint32_t need : plan.nodes[i].needs) {
      must(need < plan.nodes.size() && need != i, "a node needs what is not there");
    }
  }
  (void)inputs_to_json(plan);
  (void)describe_missing_inputs(plan);
  return 1;
}

}  // namespace

int fuzz_flow_yaml(std::string_view text) {
  YamlText places;
  const auto definition = flow_yaml_to_json(text, places);
  if (!definition) return 0;
  // The result can be stored and read again.
  const auto stored = parse_json(dump_json(*definition));
  must(stored && *stored == *definition, "a definition reads otherwise when it was stored");
  return check_plan(*definition);
}

int fuzz_flow_json(std::string_view text) {
  const auto definition = parse_json(text, kMaxDefinitionBytes);
  return definition ? check_plan(*definition) : 0;
}

}  // namespace mycojobs::fuzz
