// What a flow is to do: its definition, read and checked. Immutable while a flow runs; known by its hash.
//
// A definition is JSON (or YAML of the same shape: flow_yaml.h). docs/flows.md has the whole language; in short:
//
//   name: pipeline
//   env: {REGION: eu}
//   on_error: stop | continue            # of nodes that do not say
//   timeout: 2h                          # of the whole flow
//   max_parallel: 10                     # jobs in flight at one time; 0: any
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
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/codec.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class NodeKind { job, log, wait, pause, approval, flow };  // all but job are run by the flow itself
std::string_view word(NodeKind);

struct FlowCondition {
  enum class Test { equals, greater_than, less_than, exists };
  std::uint32_t node = 0;  // one that comes before (a need, or a need's need)
  std::string key;         // of its result; "status" with the prefix "$" reads how it ended: $status
  Test test = Test::exists;
  std::string value;  // exists: true or false; greater_than, less_than: a number
};
std::string describe(const FlowCondition&, std::string_view node_name);  // "build.size greater_than 10"

enum class OnError { stop, go_on, route };  // words: stop, continue, the name of a node

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
  std::uint64_t wait_ms = 0;         // kind wait
  std::uint64_t timeout_ms = 0;      // approval, pause, gates: so long, then the node fails; 0: for ever
  std::vector<Id> approvers;         // empty: whoever may steer the flow
  std::string text;                  // log: the line; approval, pause: what is asked
  std::string child;                 // kind flow: the child's definition, canonical JSON
  std::string child_key;             // idempotent per parent and key; default the node's name
  std::string supervisor_url;        // where the job is run, if not by any agent of the context
  std::vector<std::string> watched;  // keys of its result that conditions read
  Job job;  // kind job: script, script_type, timeout, retries, env_vars, prerequisites (without gates), policy, inputs,
            // priority, concurrency_key ...; ids, dependends and context are set when a flow is created
};

struct FlowPlan {
  std::string name;
  std::string hash;       // SHA-256 of `canonical`, 64 hex digits
  std::string canonical;  // JSON with sorted keys and every file's content inline
  TextMap env_vars;
  OnError on_error = OnError::stop;  // stop or go_on
  std::uint64_t timeout_ms = 0;
  std::uint32_t max_parallel = 0;
  std::vector<PlanNode> nodes;  // in the order of a list of jobs; of a map of jobs: of their names
  // Names are unique, are no numbers and have no '.': so `<name or id>.<key>` never collides.
  std::optional<std::uint32_t> find(std::string_view name) const;
};

inline constexpr std::uint32_t kMaxFlowNodes = 20000;
inline constexpr std::size_t kMaxDefinitionBytes = 16U << 20;

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

}  // namespace mycojobs
