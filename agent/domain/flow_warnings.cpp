#include "domain/flow_warnings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "domain/codec.h"

namespace mycojobs {
namespace {

bool needs_node(const PlanNode& node, std::uint32_t other) {
  return std::find(node.needs.begin(), node.needs.end(), other) != node.needs.end();
}

void warn_of_node(const FlowPlan& plan, const PlanNode& node, const std::string& path, std::vector<PlanProblem>& out) {
  std::set<std::uint32_t> reported;  // the nodes of an `each` share their error node: one warning for all of them
  for (const std::uint32_t need : node.needs) {
    const PlanNode& needed = plan.nodes[need];
    if (!needed.error_node || needs_node(node, *needed.error_node)) continue;
    const std::uint32_t written = needed.each.value_or(need);
    if (!reported.insert(written).second) continue;
    const std::string& name = plan.nodes[written].name;
    const std::string& handler = plan.nodes[*needed.error_node].name;
    out.push_back({path + "jobs." + node.name + ".needs", "if " + name + " fails and " + handler + " handles that, " +
                                                              node.name + " is skipped, because it does not need " +
                                                              handler + ": add " + handler +
                                                              " to its needs to run it"});
  }
}

void warn_of_flow(const FlowPlan& plan, const std::string& path, std::vector<PlanProblem>& out) {
  for (const PlanNode& node : plan.nodes) {
    if (node.each) continue;  // a node for one element: the node with `each` stands for it
    warn_of_node(plan, node, path, out);
    if (node.kind != NodeKind::flow) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const PlanRead read = read_plan(*child); read.plan)
      warn_of_flow(*read.plan, path + "jobs." + node.name + ".flow.", out);
  }
}

}  // namespace

std::vector<PlanProblem> warnings_of(const FlowPlan& plan) {
  std::vector<PlanProblem> out;
  warn_of_flow(plan, "", out);
  return out;
}

}  // namespace mycojobs
