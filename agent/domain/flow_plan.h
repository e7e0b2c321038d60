// What a flow is to do: its definition, read and checked. Immutable while a flow runs; known by its hash.
//
// A definition is JSON (or YAML of the same shape: flow_yaml.h). docs/flows.md has the whole language; in short:
//
//   name: pipeline
//   env: {REGION: eu}
//   on_error: stop | continue            # of nodes that do not say
//   timeout: 2h                          # of the whole flow
//   max_parallel: 10                     # jobs in flight at one time; 0: any
//   defaults: {type: python, retries: 1} # of every job that does not say
//   inputs: {region: {type: string, default: eu}}   # values: `given`, which whoever starts it fills (give_inputs)
//   jobs:
//     build:   {script: "...", type: python, timeout: 5m, retries: 2, env: {}, policy: {}, inputs: []}
//     test:    {needs: [build], file: test.py, when: [{key: build.size, greater_than: 10}], on_error: mend}
//     mend:    {script: ...}             # an error node: runs only when routed to
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

#include "domain/codec.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class NodeKind { job, log, wait, pause, approval, flow, each };  // all but job are run by the flow itself
std::string_view word(NodeKind);

struct FlowCondition {
  enum class Test { equals, greater_than, less_than, exists };
  std::uint32_t node = 0;  // one that comes before (a need, or a need's need)
  std::string key;         // of its result; "status" with the prefix "$" reads how it ended: $status
  Test test = Test::exists;
  std::string value;      // exists: true or false; greater_than, less_than: a number
  bool of_input = false;  // it reads the flow's input `key`, and no node
};
std::string describe(const FlowCondition&, std::string_view node_name);  // "build.size greater_than 10"
inline constexpr std::string_view kInputsName = "inputs";  // stands where a node's name does, for the flow's inputs

enum class OnError { stop, go_on, route };  // words: stop, continue, the name of a node

// A node with `each` is of kind each, and its places follow it: nodes of kind job that need it and nothing else, as
// many as there may be elements. It completes when its elements are known; places without one are then settled, as
// `absent`. So a run never has more nodes than its plan, and whoever waits for `parts` needs it and its places.
struct EachSource {
  std::uint32_t node = 0;
  std::string key;  // of its result
};

struct PlanNode {
  std::string name;
  NodeKind kind = NodeKind::job;
  std::vector<std::uint32_t> needs;       // nodes that must have settled before; in the order written, each once
  std::vector<std::uint32_t> dependents;  // the other way round
  std::vector<FlowCondition> when;        // all must hold, else the node is skipped
  OnError on_error = OnError::stop;
  std::optional<std::uint32_t> error_node;    // where an error is routed to
  std::optional<std::uint32_t> compensation;  // runs if the flow fails after this node has completed
  bool on_call = false;                       // an error node or compensation: never ready by itself
  bool irreversible = false;                  // replay past it only when allowed
  // Prerequisites that the flow looks after: approval:NAME, signal:NAME, flow:ID. All others stay with the job.
  std::vector<std::string> gates;
  std::uint64_t wait_ms = 0;          // kind wait
  std::uint64_t timeout_ms = 0;       // approval, pause, gates: so long, then the node fails; 0: for ever
  std::vector<Id> approvers;          // empty: whoever may steer the flow
  std::string text;                   // log: the line; approval, pause: what is asked
  std::string child;                  // kind flow: the child's definition, canonical JSON
  std::string child_key;              // idempotent per parent and key; default the node's name
  std::string supervisor_url;         // where the job is run, if not by any agent of the context
  std::vector<std::string> watched;   // keys of its result that conditions read
  std::uint32_t places = 0;           // kind each: how many follow
  std::vector<std::string> elements;  // kind each, of a list that is known: JSON texts
  std::optional<EachSource> from;     // kind each, of a result
  std::optional<std::uint32_t> each;  // a place: whose. Its job is there (FlowPlan::job_at), only its own name is here
  Job job;  // kind job, each: script, script_type, timeout, retries, env_vars, prerequisites (without gates), policy,
            // inputs, priority, concurrency_key ...; ids, dependends and context are set when a flow is created
};

struct FlowInput {
  std::string name, type;            // type: string, integer, number, boolean, list, object
  bool required = true;              // without a value no flow is created
  std::string fallback;              // JSON; empty: none
  std::vector<std::string> allowed;  // JSON; empty: any
};

struct FlowPlan {
  std::string name;
  std::string notify;     // who hears of its end, as Flow::notify
  std::string hash;       // SHA-256 of `canonical`, 64 hex digits
  std::string canonical;  // JSON with sorted keys and every file's content inline
  TextMap env_vars;
  OnError on_error = OnError::stop;  // stop or go_on
  std::uint64_t timeout_ms = 0;
  std::uint32_t max_parallel = 0;
  std::vector<PlanNode> nodes;  // in the order of a list of jobs; of a map of jobs: of their names
  // Names are unique, are no numbers and have no '.': so `<name or id>.<key>` never collides.
  std::optional<std::uint32_t> find(std::string_view name) const;
  std::vector<FlowInput> inputs;
  std::map<std::string, std::string> values;  // of inputs, as JSON: given, or by default
  TextMap input_texts;                        // the same as conditions read them: a text as it is
  std::vector<std::string> missing;           // inputs that are required and have no value

  const Job& job_at(std::uint32_t node) const { return nodes[nodes[node].each.value_or(node)].job; }
  // Which element a place has.
  std::uint32_t element_at(std::uint32_t node) const { return node - nodes[node].each.value_or(node) - 1; }
  std::size_t written() const;  // nodes that are there whatever results say
};

// Gives every node of kind each its places, and every need and number what it is then. Once, after names were looked
// up.
void make_places(FlowPlan&);

inline constexpr std::uint32_t kMaxFlowNodes = 20000;
inline constexpr std::size_t kMaxDefinitionBytes = 16U << 20;
inline constexpr std::uint32_t kMaxEach = 5000;   // elements of one node
inline constexpr std::uint32_t kUsualEach = 100;  // of a result, if the node says no `max`
inline constexpr std::size_t kMaxElementBytes = 64U << 10;

// A problem of a definition: where (jobs.build.when[0].key), what and the remedy, and if the text is known: its line.
struct PlanProblem {
  std::string path, message;
  std::size_t line = 0, column = 0;  // from 1; 0: unknown
};
std::string join(const std::vector<PlanProblem>&);  // lines: "line 3, column 5: jobs.b.needs[0]: ..."

// Everything that is wrong with it, not only the first thing (at most 50): unknown fields, wrong types, unknown needs,
// duplicate names, a node that needs itself, cycles (with their path: a -> b -> a), conditions on nodes that do not
// come before, an on_error or compensate that is not there or is needed by others ... `file:` must have been replaced
// by `script:` before (flow_file of the command line does it): refused here.
struct PlanRead {
  std::optional<FlowPlan> plan;  // none if there are problems
  std::vector<PlanProblem> problems;
};
PlanRead read_plan(const nlohmann::json& definition);

// Every field that a flow and a node may have: the reader's own tables, which docs/flows.md repeats.
struct PlanField {
  std::string_view of, name, takes, meaning;  // of: flow, node
};
std::vector<PlanField> plan_fields();
Result<FlowPlan> plan_of_text(std::string_view canonical, std::string_view hash);  // from a store; checks the hash

// The definition of a flow whose jobs exist already (flow.create over JSON-RPC): `nodes` may add what a job's record
// does not say (when, on_error, compensate, supervisor_url, irreversible), by job id or name. The result is a
// definition as above, so that there is one way on. Jobs without a name are called "job<id>".
Result<nlohmann::json> definition_of_jobs(const std::string& name, const TextMap& env_vars,
                                          const std::vector<Job>& jobs, const nlohmann::json& nodes);

// Whether the condition holds, given the values of its node; `why_not` says why if it does not ("build.size is absent",
// "build.size is \"x\", not a number").
bool holds(const FlowCondition&, std::string_view node_name, const TextMap& values, std::string& why_not);

// What whoever starts a flow gives it. A definition declares `inputs`; their values stand in it as `given`, so that a
// run keeps them as it keeps its definition, under one hash.

inline constexpr std::size_t kMaxInputBytes = 64U << 10;  // of all values together, as JSON

// Puts values (an object: name -> value) into a definition, over those that it has. Whether they fit is found when the
// definition is read. Error invalid: they are no object.
Result<void> give_inputs(nlohmann::json& definition, const nlohmann::json& values);
// A value as a person types it, by the type that the definition declares for the name: a string as it is, all else as
// JSON. Error invalid names the input.
Result<nlohmann::json> input_of_text(const nlohmann::json& definition, const std::string& name,
                                     const std::string& text);

nlohmann::json inputs_json(const FlowPlan&);  // name -> value
std::string missing_inputs(const FlowPlan&);  // the error for inputs without a value; empty: all have one

}  // namespace mycojobs
