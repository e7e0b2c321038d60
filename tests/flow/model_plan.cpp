// Random plans that use every feature of plans.
#include <algorithm>

#include "flow/model.h"

namespace mycojobs {
namespace {

NodeKind random_kind(Random& random) {
  static const std::vector<NodeKind> kKinds{NodeKind::job,  NodeKind::job,  NodeKind::job,   NodeKind::job,
                                            NodeKind::log,  NodeKind::wait, NodeKind::pause, NodeKind::approval,
                                            NodeKind::flow, NodeKind::job};
  return random.of(kKinds);
}

void add_condition(FlowPlan& plan, PlanNode& node, Random& random) {
  FlowCondition condition;
  condition.node = random.of(node.needs);
  const auto& before = plan.nodes[condition.node].needs;
  if (!before.empty() && random.one_in(3)) condition.node = random.of(before);
  auto& watched_keys = plan.nodes[condition.node].watched_keys;
  if (!plan.input_texts.empty() && random.one_in(4)) {
    condition = {};
    condition.is_input = true;
    condition.key = random.one_in(5) ? "none" : "n";
    condition.test = random.one_in(2) ? FlowCondition::Test::equals : FlowCondition::Test::less_than;
    condition.value = "1";
    node.when.push_back(condition);
    return;
  }
  if (random.one_in(3)) {
    condition.key = "$status";
    condition.test = FlowCondition::Test::equals;
    condition.value = random.one_in(2) ? "finished" : "error";
  } else {
    condition.key = plan.nodes[condition.node].kind == NodeKind::each ? "count" : "k";
    condition.test = random.of(std::vector{FlowCondition::Test::equals, FlowCondition::Test::greater_than,
                                           FlowCondition::Test::less_than, FlowCondition::Test::exists});
    condition.value = condition.test == FlowCondition::Test::exists ? (random.one_in(3) ? "false" : "true") : "1";
  }
  if (condition.key != "$status" &&
      std::find(watched_keys.begin(), watched_keys.end(), condition.key) == watched_keys.end())
    watched_keys.push_back(condition.key);
  node.when.push_back(condition);
}

// Makes an "each" node over a fixed list or over the result of an earlier node.
void make_each(FlowPlan& plan, PlanNode& node, Random& random) {
  std::optional<std::uint32_t> source;
  for (const std::uint32_t need : node.needs) {
    if (plan.nodes[need].kind != NodeKind::each) source = need;
  }
  node.kind = NodeKind::each;
  if (!source || random.one_in(3)) {
    node.elements.assign(random.below(4), "1");
    node.max_elements = static_cast<std::uint32_t>(node.elements.size());
    return;
  }
  node.element_source = EachSource{*source, "list"};
  node.max_elements = 1 + random.below(3);
  auto& watched_keys = plan.nodes[*source].watched_keys;
  if (std::find(watched_keys.begin(), watched_keys.end(), "list") == watched_keys.end()) watched_keys.push_back("list");
}

void add_gates(PlanNode& node, Random& random) {
  static const std::vector<std::string> kGates{"approval:legal", "approval:money", "signal:go",
                                               "signal:more",    "flow:9001",      "flow:9002"};
  const std::uint32_t count = 1 + random.below(2);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string gate = random.of(kGates);
    if (std::find(node.gates.begin(), node.gates.end(), gate) == node.gates.end()) node.gates.push_back(gate);
  }
}

std::uint32_t add_on_call(FlowPlan& plan, Random& random, bool compensation) {
  PlanNode node;
  node.name = (compensation ? "undo" : "mend") + std::to_string(plan.nodes.size());
  node.on_call = true;
  node.kind = compensation ? (random.one_in(4) ? NodeKind::log : NodeKind::job) : random_kind(random);
  node.wait_ms = 50;
  if (random.one_in(5)) node.on_error = OnError::proceed;
  if (!compensation && random.one_in(6)) add_gates(node, random);
  plan.nodes.push_back(std::move(node));
  return static_cast<std::uint32_t>(plan.nodes.size() - 1);
}

// Adds error nodes and compensations, and some nodes that need an error node.
void add_calls(FlowPlan& plan, Random& random, std::uint32_t plain) {
  std::vector<std::uint32_t> error_nodes;
  for (std::uint32_t i = 0; i < plain; ++i) {
    if (plan.nodes[i].kind != NodeKind::each && random.one_in(6))
      plan.nodes[i].compensation = add_on_call(plan, random, true);
    if (!random.one_in(5)) continue;
    const bool another = error_nodes.empty() || random.one_in(2);
    if (another) error_nodes.push_back(add_on_call(plan, random, false));
    plan.nodes[i].on_error = OnError::route;
    plan.nodes[i].error_node = another ? error_nodes.back() : random.of(error_nodes);
  }
  for (const std::uint32_t error_node : error_nodes) {
    if (random.one_in(4)) {
      const std::uint32_t other = random.of(error_nodes);
      plan.nodes[error_node].on_error = OnError::route;
      plan.nodes[error_node].error_node = other;
      if (other == error_node) plan.nodes[error_node].on_error = OnError::stop;
      if (other == error_node) plan.nodes[error_node].error_node.reset();
    }
    // Only nodes after all nodes that route to the error node may need it, so that no cycle arises.
    std::uint32_t after = 0;
    for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
      if (i < plain && plan.nodes[i].error_node == error_node) after = i + 1;
    }
    if (after < plain && random.one_in(2)) {
      auto& needs = plan.nodes[after + random.below(plain - after)].needs;
      if (std::find(needs.begin(), needs.end(), error_node) == needs.end()) needs.push_back(error_node);
    }
  }
}

// Returns the same graph with its nodes in another order: the order of a definition must not matter.
void shuffle(FlowPlan& plan, Random& random) {
  std::vector<std::uint32_t> to(plan.nodes.size());
  for (std::uint32_t i = 0; i < to.size(); ++i) to[i] = i;
  for (std::uint32_t i = static_cast<std::uint32_t>(to.size()); i > 1; --i) std::swap(to[i - 1], to[random.below(i)]);
  std::vector<PlanNode> nodes(plan.nodes.size());
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    PlanNode& node = plan.nodes[i];
    for (std::uint32_t& need : node.needs) need = to[need];
    for (FlowCondition& condition : node.when) {
      if (!condition.is_input) condition.node = to[condition.node];
    }
    if (node.element_source) node.element_source->node = to[node.element_source->node];
    if (node.error_node) node.error_node = to[*node.error_node];
    if (node.compensation) node.compensation = to[*node.compensation];
    nodes[to[i]] = std::move(node);
  }
  plan.nodes = std::move(nodes);
}

}  // namespace

FlowPlan random_plan(Random& random, std::uint32_t max_nodes) {
  FlowPlan plan;
  plan.name = "random";
  plan.hash = "random";
  if (random.one_in(3)) plan.max_parallel = 1 + random.below(4);
  if (random.one_in(5)) plan.timeout_ms = 100 + random.below(3000);
  if (random.one_in(3)) plan.input_texts["n"] = std::to_string(random.below(3));
  const std::uint32_t plain = 1 + random.below(max_nodes);
  const std::uint32_t reach = 1 + random.below(10);  // small: chains; large: wide graphs
  for (std::uint32_t i = 0; i < plain; ++i) {
    PlanNode node;
    node.name = "n" + std::to_string(i);
    node.kind = random_kind(random);
    node.wait_ms = random.below(200);
    if (random.one_in(4)) node.timeout_ms = 20 + random.below(500);
    if (random.one_in(5)) node.on_error = OnError::proceed;
    const std::uint32_t needs = i == 0 || random.one_in(6) ? 0 : 1 + random.below(3);
    for (std::uint32_t k = 0; k < needs; ++k) {
      const std::uint32_t need = i - 1 - random.below(std::min(i, reach));
      if (std::find(node.needs.begin(), node.needs.end(), need) == node.needs.end()) node.needs.push_back(need);
    }
    if (!node.needs.empty() && random.one_in(5)) add_condition(plan, node, random);
    if (random.one_in(7)) add_gates(node, random);
    if (node.kind == NodeKind::job && random.one_in(6)) make_each(plan, node, random);
    if (random.one_in(5)) node.approvers = {7, 8};
    plan.nodes.push_back(std::move(node));
  }
  add_calls(plan, random, plain);
  if (random.one_in(2)) shuffle(plan, random);
  expand_each_nodes(plan);
  return plan;
}

}  // namespace mycojobs
