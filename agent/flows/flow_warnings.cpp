#include "flows/flow_warnings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "text/json.h"

namespace mycojobs {
namespace {

bool needs_node(const PlanNode& node, std::uint32_t other) {
  return std::find(node.needs.begin(), node.needs.end(), other) != node.needs.end();
}

// place: the path of the node in its definition.
void warn_of_node(const FlowPlan& plan, const PlanNode& node, const std::string& place, std::vector<PlanProblem>& out) {
  std::set<std::uint32_t> reported;  // elements of an `each` share their error node and get one warning
  for (const std::uint32_t need : node.needs) {
    const PlanNode& needed = plan.nodes[need];
    if (!needed.error_node || needs_node(node, *needed.error_node)) continue;
    const std::uint32_t written = needed.each.value_or(need);
    if (!reported.insert(written).second) continue;
    const std::string& name = plan.nodes[written].name;
    const std::string& handler = plan.nodes[*needed.error_node].name;
    out.push_back({place + ".needs", "if " + name + " fails and " + handler + " handles that, " + node.name +
                                         " is skipped, because it does not need " + handler + ": add " + handler +
                                         " to its needs to run it"});
  }
}

void warn_of_flow(const FlowPlan& plan, const nlohmann::json& definition, const std::string& path,
                  std::vector<PlanProblem>& out) {
  const auto jobs = definition.find("jobs");
  const bool is_list = jobs != definition.end() && jobs->is_array();
  std::size_t written = 0;  // number of preceding nodes in the definition
  for (const PlanNode& node : plan.nodes) {
    if (node.each) continue;  // the definition has the `each` node, not its elements
    const std::string place = path + (is_list ? "jobs[" + std::to_string(written) + "]" : "jobs." + node.name);
    ++written;
    warn_of_node(plan, node, place, out);
    if (node.kind != NodeKind::flow) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const ParsedPlan read = read_plan(*child); read.plan) warn_of_flow(*read.plan, *child, place + ".flow.", out);
  }
}

}  // namespace

std::vector<PlanProblem> warnings_of(const FlowPlan& plan, const nlohmann::json& definition) {
  std::vector<PlanProblem> out;
  warn_of_flow(plan, definition, "", out);
  return out;
}

}  // namespace mycojobs
