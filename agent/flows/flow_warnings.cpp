#include "flows/flow_warnings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "text/json.h"

namespace mycojobs {
namespace {

bool needs_node(const PlanNode& node, std::uint32_t other) {
  return std::find(node.needs.begin(), node.needs.end(), other) != node.needs.end();
}

// `path` is the path of the node in the definition.
void warn_of_node(const FlowPlan& plan, const PlanNode& node, const std::string& path,
                  std::vector<DocumentProblem>& out) {
  std::set<std::uint32_t> reported;  // elements of an `each` share their error node and get one warning
  for (const std::uint32_t need : node.needs) {
    const PlanNode& needed = plan.nodes[need];
    if (!needed.error_node || needs_node(node, *needed.error_node)) continue;
    const std::uint32_t defined_node = needed.each_node.value_or(need);
    if (!reported.insert(defined_node).second) continue;
    const std::string& name = plan.nodes[defined_node].name;
    const std::string& handler = plan.nodes[*needed.error_node].name;
    out.push_back({path + ".needs", "if " + name + " fails and " + handler + " handles that, " + node.name +
                                        " is skipped, because it does not need " + handler + ": add " + handler +
                                        " to its needs to run it"});
  }
}

void warn_of_flow(const FlowPlan& plan, const nlohmann::json& definition, const std::string& path,
                  std::vector<DocumentProblem>& out) {
  const auto jobs = definition.find("jobs");
  const bool is_list = jobs != definition.end() && jobs->is_array();
  std::size_t index = 0;  // number of preceding nodes in the definition
  for (const PlanNode& node : plan.nodes) {
    if (node.each_node) continue;  // the definition has the `each` node, not its elements
    const std::string node_path = path + (is_list ? "jobs[" + std::to_string(index) + "]" : "jobs." + node.name);
    ++index;
    warn_of_node(plan, node, node_path, out);
    if (node.kind != NodeKind::flow) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const ParsedPlan read = read_plan(*child); read.plan)
      warn_of_flow(*read.plan, *child, node_path + ".flow.", out);
  }
}

}  // namespace

std::vector<DocumentProblem> find_warnings(const FlowPlan& plan, const nlohmann::json& definition) {
  std::vector<DocumentProblem> out;
  warn_of_flow(plan, definition, "", out);
  return out;
}

}  // namespace mycojobs
