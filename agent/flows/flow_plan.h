// The definition of a flow, parsed and checked. Immutable while a flow runs, and identified by its hash.
//
// A definition is JSON (or YAML of the same structure: text/yaml.h). docs/flows.md describes the whole language.
// Example:
//
//   name: pipeline
//   env: {REGION: eu}
//   on_error: stop | continue            # default for nodes
//   timeout: 2h                          # time limit of the whole flow
//   max_parallel: 10                     # maximum number of jobs in flight; 0: no limit
//   defaults: {type: python, retries: 1} # default fields of jobs
//   inputs: {region: {type: string, default: eu}}   # their values are in `given`, set at the start (apply_inputs)
//   jobs:
//     build:   {script: "...", type: python, timeout: 5m, retries: 2, env: {}, policy: {}, inputs: []}
//     test:    {needs: [build], file: test.py, when: [{key: build.size, greater_than: 10}], on_error: repair}
//     repair:  {script: ...}             # an error node: runs only when a failure is routed to it
//     undo:    {script: ...}             # a compensation: runs only when the flow fails
//     deploy:  {needs: [ok], script: ..., irreversible: true, compensate: undo, prerequisites: ["approval:legal"]}
//     ok:      {needs: [test], approval: {approvers: [12], timeout: 1d, comment: "ship?"}}
//     hold:    {needs: [deploy], pause: "look at the dashboards"}
//     later:   {needs: [hold], wait: 30s}
//     said:    {needs: [later], log: "deployed"}
//     child:   {needs: [said], flow: {name: ..., jobs: {...}}, key: nightly}
//     parts:   {each: build.files, max: 50, script: ...}   # or a list, or inputs.NAME: parts[0], parts[1] ...
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/codec.h"
#include "model/records.h"
#include "text/document_reader.h"

namespace mycojobs {

enum class NodeKind { job, log, wait, pause, approval, flow, each };  // the flow itself runs all kinds except job
std::string_view to_string(NodeKind);

struct FlowCondition {
  enum class Test { equals, greater_than, less_than, exists };
  std::uint32_t node = 0;  // a direct or indirect need of the node with this condition
  // Key of the node's result. "$status" is the status with which the node ended.
  std::string key;
  Test test = Test::exists;
  std::string value;      // "true" or "false" for exists, a number for greater_than and less_than
  bool is_input = false;  // reads the flow's input `key` instead of a node's result
};
std::string describe(const FlowCondition&, std::string_view node_name);  // "build.size greater_than 10"
// Used instead of the name of a node in a condition on an input of the flow, and as the source of elements.
inline constexpr std::string_view kInputsName = "inputs";

enum class OnError { stop, proceed, route };  // in a definition: stop, continue, or the name of a node

// The source of the elements of a node with `each`. Such a node has kind each, and its element nodes follow it in the
// plan: nodes of kind job that need only this node, one for each possible element. The node completes when its elements
// are known; element nodes without an element are then settled as `absent`. Therefore a run never has more nodes than
// its plan. A node that needs `parts` needs the node of kind each and its element nodes.
struct EachSource {
  std::uint32_t node = 0;
  std::string key;  // key of the node's result
};

struct PlanNode {
  std::string name;
  NodeKind kind = NodeKind::job;
  // Nodes that must settle before this node, in the order of the definition, without duplicates.
  std::vector<std::uint32_t> needs;
  std::vector<std::uint32_t> dependents;  // nodes that need this node
  std::vector<FlowCondition> when;        // conditions that must all hold; otherwise the node is skipped
  OnError on_error = OnError::stop;
  std::optional<std::uint32_t> error_node;    // handles the failure of this node
  std::optional<std::uint32_t> compensation;  // runs if the flow fails after this node has completed
  bool on_call = false;                       // an error node or compensation, which starts only when it is called
  bool irreversible = false;                  // replay beyond this node needs permission
  // Prerequisites that the flow checks: approval:NAME, signal:NAME, flow:ID. All others belong to the job.
  std::vector<std::string> gates;
  std::uint64_t wait_ms = 0;     // for kind wait
  std::uint64_t timeout_ms = 0;  // for approval, pause and gates: time after which the node fails; 0 means no limit
  std::vector<Id> approvers;     // if empty, every actor that may steer the flow
  std::string text;              // the line of a log node, or the question of an approval or pause
  std::string child;             // for kind flow: the child's definition, canonical JSON
  std::string child_key;         // the child is started once per parent and key; default: the node's name
  std::string supervisor_url;    // supervisor that runs the job; if empty, an agent of the context
  std::vector<std::string> watched_keys;     // keys of the result that conditions read
  std::uint32_t max_elements = 0;            // for kind each: number of element nodes
  std::vector<std::string> elements;         // for kind each with a literal list: JSON texts
  std::optional<EachSource> element_source;  // for kind each with elements from a result
  // Set for an element node: its node of kind each, which has the job (FlowPlan::job_at). An element node has only the
  // name of the job.
  std::optional<std::uint32_t> each_node;
  // Kinds job and each: script, script_type, timeout, retries, env_vars, policy, inputs, priority, concurrency_key, and
  // prerequisites without gates. Ids, dependends and context are set when the flow is created.
  Job job;
};

struct FlowInput {
  std::string name, type;                   // type: string, integer, number, boolean, list, object
  bool required = true;                     // without a value, the flow cannot be created
  std::string default_value;                // JSON; empty without a default
  std::vector<std::string> allowed_values;  // JSON; if empty, any value is allowed
};

struct FlowPlan {
  std::string name;
  std::string notify;     // as Flow::notify
  std::string hash;       // SHA-256 of `canonical`, 64 hex digits
  std::string canonical;  // JSON with sorted keys and the content of every file
  TextMap env_vars;
  OnError on_error = OnError::stop;  // stop or proceed
  std::uint64_t timeout_ms = 0;
  std::uint32_t max_parallel = 0;
  std::vector<PlanNode> nodes;  // in the order of the list of jobs; for a map of jobs: in the order of names
  // Names are unique, are not numbers and have no '.', so `<name or id>.<key>` is unambiguous.
  std::optional<std::uint32_t> find(std::string_view node_name) const;
  std::vector<FlowInput> inputs;
  std::map<std::string, std::string> values;  // values of inputs as JSON: given or default
  TextMap input_texts;                        // the same values as text for conditions; a string is used as it is
  std::vector<std::string> missing;           // required inputs without a value

  const Job& job_at(std::uint32_t node) const { return nodes[nodes[node].each_node.value_or(node)].job; }
  // Returns the index of the element of an element node.
  std::uint32_t element_index(std::uint32_t node) const { return node - nodes[node].each_node.value_or(node) - 1; }
  std::size_t static_node_count() const;  // number of nodes that exist independently of results
};

// Inserts the element nodes of each node of kind each, and adapts needs and indexes. Must be called once, after names
// were resolved.
void expand_each_nodes(FlowPlan&);

inline constexpr std::uint32_t kMaxFlowNodes = 20000;
inline constexpr std::size_t kMaxDefinitionBytes = 16U << 20;
inline constexpr std::uint32_t kMaxElements = 5000;        // per node of kind each
inline constexpr std::uint32_t kDefaultMaxElements = 100;  // default of `max` for elements from a result
inline constexpr std::size_t kMaxElementBytes = 64U << 10;

// The result of read_plan(). All problems are reported, at most 50: unknown fields, wrong types, unknown needs,
// duplicate names, a node that needs itself, cycles (with their path: a -> b -> a), conditions on nodes that do not
// come before, an on_error or compensate that does not exist or that other nodes need, and so on. `file:` is rejected:
// the command line replaces it by `script:` first (flow_file).
struct ParsedPlan {
  std::optional<FlowPlan> plan;  // no value if there are problems
  std::vector<DocumentProblem> problems;
};
ParsedPlan read_plan(const nlohmann::json& definition);

// Describes a field of a flow or a node. The rows are generated from the reader's tables; docs/flows.md repeats them.
struct PlanField {
  std::string_view owner, name, value_format, meaning;  // owner: `flow` or `node`
};
std::vector<PlanField> plan_fields();
// Parses a stored definition and checks its hash. In a definition that a version without references has stored, "${" in
// `env` means itself.
Result<FlowPlan> parse_stored_plan(std::string_view canonical, std::string_view hash);

// Returns the definition of a flow whose jobs exist already (flow.create over JSON-RPC). `nodes` may add fields that a
// job's record lacks (when, on_error, compensate, supervisor_url, irreversible), by job id or name. Jobs without a name
// are called "job<id>".
Result<nlohmann::json> build_definition(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                                        const nlohmann::json& nodes);

// Returns whether the values of its node meet the condition. If not, stores in `reason`, for example: "build.size is
// absent", "build.size is \"x\", not a number".
bool is_met(const FlowCondition&, std::string_view node_name, const TextMap& values, std::string& reason);

// Input values of a flow. A definition declares `inputs` and stores their values as `given`, so that the values are
// part of the definition and its hash.

inline constexpr std::size_t kMaxInputBytes = 64U << 10;  // limit of all values together, as JSON

// Adds values (an object: name -> value) to a definition and replaces values that it has. read_plan() checks whether
// they fit. Error invalid: `values` is not an object.
Result<void> apply_inputs(nlohmann::json& definition, const nlohmann::json& values);
// Parses a value from a command line by the type that the definition declares: a string is used as it is, any other
// type is JSON. Error invalid: names the input.
Result<nlohmann::json> parse_input(const nlohmann::json& definition, const std::string& name, const std::string& text);

nlohmann::json inputs_to_json(const FlowPlan&);  // name -> value
// Returns the error for required inputs without a value, or an empty text if all have a value.
std::string describe_missing_inputs(const FlowPlan&);

}  // namespace mycojobs
