#include <algorithm>
#include <nlohmann/json.hpp>

#include "flows/flow_plan.h"
#include "flows/node_job.h"
#include "model/flow_data.h"
#include "model/result_references.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Returns the `script` field of a node that the flow executes itself, such as an approval or a wait.
std::string make_script(const PlanNode& node) {
  switch (node.kind) {
    case NodeKind::job:
      return node.job.script;
    case NodeKind::wait:
      return std::to_string(node.wait_ms) + "ms";
    case NodeKind::flow:
      return node.child_key.empty() ? node.name : node.child_key;
    case NodeKind::each:
      return node.name;
    case NodeKind::log:
    case NodeKind::pause:
    case NodeKind::approval:
      break;
  }
  return node.text.empty() ? node.name : node.text;
}

// Returns the nodes whose results a node reads: the nodes that it needs, and for an error node or compensation also the
// node that it handles or compensates.
std::vector<std::uint32_t> find_result_nodes(const FlowPlan& plan, std::uint32_t node) {
  // An element of `each` reads the nodes that its node needs.
  const std::uint32_t defined_node = plan.nodes[node].each_node.value_or(node);
  std::vector<std::uint32_t> nodes = plan.nodes[defined_node].needs;
  for (std::uint32_t i = 0; plan.nodes[node].on_call && i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].error_node == node || plan.nodes[i].compensation == node) nodes.push_back(i);
  }
  return nodes;
}

// The jobs whose results a node reads.
struct ResultSources {
  std::vector<Id> jobs;
  // Jobs of the elements in order, by the name of the node of kind `each`.
  std::map<std::string, std::vector<Id>> joins;
};
ResultSources find_result_sources(const LoadedRun& run, std::uint32_t node) {
  ResultSources out;
  for (const std::uint32_t i : find_result_nodes(*run.plan, node)) {
    const PlanNode& plan_node = run.plan->nodes[i];
    if (plan_node.kind == NodeKind::each) {
      out.joins[plan_node.name];
    } else if (!has_not_started(*run.plan, run.state, i)) {
      out.jobs.push_back(run.record.jobs.at(i));
      if (plan_node.each_node) out.joins[run.plan->nodes[*plan_node.each_node].name].push_back(out.jobs.back());
    }
  }
  return out;
}

// Returns the wanted artifacts. "parts" and "parts/app" mean the artifacts of all elements of a node of kind `each`.
std::vector<std::string> resolve_inputs(const LoadedRun& run, std::uint32_t node) {
  std::vector<std::string> inputs;
  for (const std::string& input : run.plan->job_at(node).inputs) {
    const std::size_t slash = std::min(input.find('/'), input.size());
    const auto source = run.plan->find(input.substr(0, slash));
    if (!source || run.plan->nodes[*source].kind != NodeKind::each) {
      inputs.push_back(input);
      continue;
    }
    for (std::uint32_t i = *source + 1; i <= *source + run.plan->nodes[*source].max_elements; ++i) {
      const bool has_artifacts =
          run.state.nodes[i].status == NodeStatus::completed && run.state.nodes[i].detail == "ok";
      if (has_artifacts) inputs.push_back(run.plan->nodes[i].name + input.substr(slash));
    }
  }
  return inputs;
}

json collect_signals(const LoadedRun& run, std::uint32_t node) {
  json signals = json::object();
  for (const std::string& gate : run.plan->nodes[run.plan->nodes[node].each_node.value_or(node)].gates) {
    if (!gate.starts_with("signal:")) continue;
    const auto received = run.state.signals.find(gate.substr(7));
    if (received == run.state.signals.end()) continue;
    const auto payload = parse_json(received->second.empty() ? "null" : received->second);
    signals[received->first] = payload ? *payload : json();
  }
  return signals;
}

// Texts with references stay as they are until the run. Texts with escapes alone are stored as they are meant.
void unescape_texts(Job& job) {
  for (auto& [name, value] : job.env_vars) value = unescape_references(value);
  for (std::string& argument : job.args) argument = unescape_references(argument);
}

// Returns which texts of a job have references: the member `expand` of its flow data.
json describe_expanded_texts(const Job& job) {
  json texts = json::object();
  for (const auto& [name, value] : job.env_vars) {
    if (has_references(value)) texts["env"].push_back(name);
  }
  for (std::size_t i = 0; i < job.args.size(); ++i) {
    if (has_references(job.args[i])) texts["args"].push_back(i);
  }
  return texts;
}

}  // namespace

Job make_node_job(const Flow& flow, const FlowPlan& plan, std::uint32_t node) {
  const PlanNode& plan_node = plan.nodes.at(node);
  Job job;
  if (plan_node.kind == NodeKind::job) {
    job = plan.job_at(node);
    unescape_texts(job);
    job.env_vars.insert(flow.env_vars.begin(), flow.env_vars.end());  // Variables of the job take precedence.
  } else {
    job.script_type = to_string(plan_node.kind);
    job.script = make_script(plan_node);
  }
  job.id = flow.jobs.at(node);
  job.caller_id = flow.caller_id;
  job.context_id = flow.context_id;
  job.flow_id = flow.id;
  job.name = plan_node.name;
  job.dependends.clear();
  for (const std::uint32_t i : find_result_nodes(plan, node)) {
    if (!plan.nodes[i].each_node) job.dependends.push_back(flow.jobs.at(i));
  }
  if (!plan_node.supervisor_url.empty()) job.unknown.emplace_back("supervisor_url", plan_node.supervisor_url);
  return job;
}

const std::vector<std::string>& DispatchFieldBuilder::get_cached_elements(std::uint32_t each_node) {
  const auto cached = elements_.find(each_node);
  if (cached != elements_.end()) return cached->second;
  return elements_[each_node] = get_elements(*run_.plan, run_.state, each_node).value_or(std::vector<std::string>());
}

FlowDispatch DispatchFieldBuilder::build(std::uint32_t node) {
  const FlowPlan& plan = *run_.plan;
  const PlanNode& plan_node = plan.nodes[node];
  FlowDispatch dispatch{node_job_key(run_, node), {}, {}};
  if (plan_node.each_node) dispatch.new_node_job = make_node_job(run_.record, plan, node);
  // The records of jobs that were created before their flow do not have the environment of the flow.
  if (!run_.record.env_vars.empty()) {
    Job job;
    job.env_vars = plan.job_at(node).env_vars;
    unescape_texts(job);
    TextMap& env_vars = job.env_vars;
    env_vars.insert(run_.record.env_vars.begin(), run_.record.env_vars.end());  // Variables of the job take precedence.
    dispatch.record_fields.emplace_back("env_vars", dump_json(json(env_vars)));
  }
  json data = json::object();
  if (!run_.record.name.empty()) data["flow"] = run_.record.name;
  if (json texts = describe_expanded_texts(plan.job_at(node)); !texts.empty()) data["expand"] = std::move(texts);
  if (!plan.values.empty()) data["inputs"] = inputs_to_json(plan);
  if (json signals = collect_signals(run_, node); !signals.empty()) data["signals"] = std::move(signals);
  if (plan_node.each_node) {
    const auto& values = get_cached_elements(*plan_node.each_node);
    const std::uint32_t element = plan.element_index(node);
    const auto value = element < values.size() ? parse_json(values[element]) : Result<json>(json());
    data["each"] = {{"index", element}, {"count", values.size()}, {"value", value.value_or(json())}};
  }
  const ResultSources sources = find_result_sources(run_, node);
  if (!sources.joins.empty()) data["joins"] = sources.joins;
  if (!sources.joins.empty() || plan_node.each_node) {
    dispatch.record_fields.emplace_back("dependends", dump_json(json(sources.jobs)));
    if (!plan.job_at(node).inputs.empty())
      dispatch.record_fields.emplace_back("inputs", dump_json(json(resolve_inputs(run_, node))));
  }
  if (!data.empty()) dispatch.record_fields.emplace_back(kFlowDataField, dump_json(data));
  return dispatch;
}

}  // namespace mycojobs
