// Nodes for the elements of a list: `each` as it is written, and the places that it comes to.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace plans {

std::optional<std::vector<std::string>> elements_of(const json& value) {
  if (!value.is_structured()) return std::nullopt;
  std::vector<std::string> elements;
  elements.reserve(value.size());
  if (value.is_array()) {
    for (const json& each : value) elements.push_back(dump_json(each));
  } else {
    for (const auto& item : value.items())
      elements.push_back(dump_json({{"key", item.key()}, {"value", item.value()}}));
  }
  return elements;
}

void read_each(const Spot& spot, Draft& draft, int) {
  DraftEach each = draft.each.value_or(DraftEach{});
  each.path = spot.path;
  if (const auto* text = spot.value.get_ptr<const std::string*>()) {
    const std::size_t dot = std::min(text->find('.'), text->size());
    each.from = {text->substr(0, dot), spot.path};
    each.key = text->substr(std::min(dot + 1, text->size()));
    if (each.from.name.empty() || each.key.empty() || each.key.front() == '$') {
      spot.refuse(shown(*text) + " is not NODE.KEY, a list in a result, and not inputs.NAME");
      each.from = {};
    }
  } else if (auto elements = elements_of(spot.value)) {
    each.elements = std::move(*elements);
  } else {
    spot.wrong("a list, a map, inputs.NAME or NODE.KEY");
  }
  draft.each = std::move(each);
}

void read_max(const Spot& spot, Draft& draft, int) {
  std::int64_t number = 0;
  if (!read_whole(spot, 1, kMaxEach, number)) return;
  DraftEach each = draft.each.value_or(DraftEach{});
  each.max = static_cast<std::uint32_t>(number);
  each.max_path = spot.path;
  draft.each = std::move(each);
}

}  // namespace plans

namespace {

PlanNode place_of(const PlanNode& group, std::uint32_t at, std::uint32_t element) {
  PlanNode place;
  place.name = group.name + '[' + std::to_string(element) + ']';
  place.kind = NodeKind::job;
  place.needs = {at};
  place.each = at;
  place.on_error = group.on_error;
  place.error_node = group.error_node;
  place.irreversible = group.irreversible;
  place.supervisor_url = group.supervisor_url;
  place.job.name = place.name;
  return place;
}

}  // namespace

void make_places(FlowPlan& plan) {
  std::vector<PlanNode> old = std::move(plan.nodes);
  std::vector<std::uint32_t> to(old.size());
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    to[i] = count;
    count += 1 + old[i].places;
  }
  plan.nodes.clear();
  plan.nodes.reserve(count);
  for (std::size_t i = 0; i < old.size(); ++i) {
    PlanNode node = old[i];
    node.dependents.clear();
    node.needs.clear();
    for (const std::uint32_t need : old[i].needs) {
      for (std::uint32_t k = 0; k <= old[need].places; ++k) node.needs.push_back(to[need] + k);
    }
    for (FlowCondition& condition : node.when) {
      if (!condition.of_input) condition.node = to[condition.node];
    }
    if (node.from) node.from->node = to[node.from->node];
    if (node.error_node) node.error_node = to[*node.error_node];
    if (node.compensation) node.compensation = to[*node.compensation];
    const std::uint32_t at = to[i];
    plan.nodes.push_back(std::move(node));
    for (std::uint32_t k = 0; k < old[i].places; ++k) plan.nodes.push_back(place_of(plan.nodes[at], at, k));
    // What is done and cannot be undone is done by its places.
    if (old[i].kind == NodeKind::each) plan.nodes[at].irreversible = false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    for (const std::uint32_t need : plan.nodes[i].needs) plan.nodes[need].dependents.push_back(i);
  }
}

std::size_t FlowPlan::written() const {
  return static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [this](const PlanNode& node) { return !node.each || !nodes[*node.each].from; }));
}

}  // namespace mycojobs
