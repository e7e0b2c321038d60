// The reader of definitions, which reports all problems with their paths. Included only by flow_plan.cpp,
// flow_plan_reader.cpp and flow_state.cpp.
//
//   read_flow --> read_inputs, read_node for each (flow_plan_reader.cpp) --> link_plan --> expand_each_nodes
//   (flow_plan.cpp)
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flows/flow_plan.h"
#include "model/result_references.h"
#include "text/document_reader.h"

namespace mycojobs::plans {

using nlohmann::json;

inline constexpr int kMaxChildDepth = 8;  // nested child flows
inline constexpr std::size_t kMaxNameBytes = 64;

// Checks the field `notify` and writes it to `out` as JSON text.
void read_notify_field(const DocumentValue&, std::string& out);

bool is_node_name(std::string_view name);
void check_node_name(std::string_view name, const std::string& path, DocumentProblems&);

// The name of another node, and the path in the definition at which the name occurs, such as jobs.build.needs[0].
struct NodeReference {
  std::string name, path;
};
// A reference in `env` or `args` of a node, and the path of the text that has it.
struct DraftReference {
  ResultReference reference;
  std::string path;
};
struct DraftCondition {
  FlowCondition condition;
  NodeReference node;
  bool is_ordered_before = false;  // set if the node that the condition reads comes before the node with the condition
};
// The fields `each` and `max` of a node.
struct DraftEach {
  std::string path;
  std::vector<std::string> elements;  // elements of a literal list or map
  // Source of the elements unless they are literal: `inputs`, or a node with a result that has them under `key`.
  NodeReference source;
  std::string key;
  std::optional<std::uint32_t> max;
  std::string max_path;
};
// A node before the names in it are resolved.
struct DraftNode {
  PlanNode node;
  std::string path;  // path of the node in the definition
  std::vector<NodeReference> needs;
  std::vector<DraftCondition> conditions;
  std::optional<NodeReference> error_node, compensation;
  bool has_on_error = false;
  std::vector<NodeReference> inputs;  // nodes whose artifacts the job receives
  std::vector<DraftReference> references;
  std::optional<DraftEach> each;
};

// A row of the table of node fields.
constexpr std::uint32_t kind_bit(NodeKind kind) { return 1U << static_cast<unsigned>(kind); }
struct NodeField {
  std::string_view name;
  std::uint32_t kinds;  // kind_bit() of each kind that has the field
  void (*read)(const DocumentValue&, DraftNode&, int depth);
  std::string_view value_format, meaning;
};
std::span<const NodeField> node_fields();
// Returns the field for a name that records or other workflow languages use: "depends" -> "needs". Returns an empty
// text for an unknown name.
std::string_view resolve_field_alias(std::string_view field);

// Reads a node. `defaults` is an object with default fields of jobs, already checked by check_defaults(). If the nodes
// are a list, has_name_field is true: the name is a field of the node. In a map, the name is the key of the node.
DraftNode read_node(const DocumentValue&, std::string name, bool has_name_field, int depth, const json& defaults);
void check_defaults(const DocumentValue&);
// Reads `inputs` and `given` of a flow.
void read_inputs(const DocumentValue& flow, FlowPlan&);
void read_each(const DocumentValue&, DraftNode&, int depth);
void read_max(const DocumentValue&, DraftNode&, int depth);
// Returns the elements of a list, or of a map as {"key", "value"}, as JSON. Returns no value for any other type.
std::optional<std::vector<std::string>> split_elements(const json&);
void read_condition(const DocumentValue&, DraftNode&);
// Reads a whole flow, except FlowPlan::canonical and hash. Adds problems to those of the DocumentValue.
FlowPlan read_flow(const DocumentValue&, int depth);
// Resolves the names of nodes, and rejects plans that cannot work.
void link_plan(FlowPlan&, std::vector<DraftNode>, DocumentProblems&);
// Returns the nodes in an order in which each node follows its needs and the nodes whose errors it handles. The result
// is shorter if there are cycles, which are reported with their paths.
std::vector<std::uint32_t> sort_topologically(const FlowPlan&, const std::vector<DraftNode>&, DocumentProblems&);

}  // namespace mycojobs::plans
