#include <algorithm>
#include <nlohmann/json.hpp>

#include "flows/flow_plan.h"
#include "flows/node_job.h"
#include "model/flow_data.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Returns the `script` field of a node that the flow executes itself, such as an approval or a wait.
std::string script_of(const PlanNode& node) {
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
std::vector<std::uint32_t> read_by(const FlowPlan& plan, std::uint32_t node) {
  const std::uint32_t written =
      plan.nodes[node].each.value_or(node);  // An element of `each` reads the nodes that its node needs.
  std::vector<std::uint32_t> nodes = plan.nodes[written].needs;
  for (std::uint32_t i = 0; plan.nodes[node].on_call && i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].error_node == node || plan.nodes[i].compensation == node) nodes.push_back(i);
  }
  return nodes;
}

// Returns the jobs of `nodes` whose results are read. A node of kind `each` is replaced by the jobs of its elements, in
// order.
struct ResultSources {
  std::vector<Id> jobs;
  std::map<std::string, std::vector<Id>> joins;
};
ResultSources readings_of(const LoadedRun& run, std::uint32_t node) {
  ResultSources out;
  for (const std::uint32_t i : read_by(*run.plan, node)) {
    const PlanNode& planned = run.plan->nodes[i];
    if (planned.kind == NodeKind::each) {
      out.joins[planned.name];
    } else if (!has_not_started(*run.plan, run.state, i)) {
      out.jobs.push_back(run.record.jobs.at(i));
      if (planned.each) out.joins[run.plan->nodes[*planned.each].name].push_back(out.jobs.back());
    }
  }
  return out;
}

// Returns the wanted artifacts. "parts" and "parts/app" mean the artifacts of all elements of a node of kind `each`.
std::vector<std::string> wanted_of(const LoadedRun& run, std::uint32_t node) {
  std::vector<std::string> wanted;
  for (const std::string& each : run.plan->job_at(node).inputs) {
    const std::size_t slash = std::min(each.find('/'), each.size());
    const auto of = run.plan->find(each.substr(0, slash));
    if (!of || run.plan->nodes[*of].kind != NodeKind::each) {
      wanted.push_back(each);
      continue;
    }
    for (std::uint32_t i = *of + 1; i <= *of + run.plan->nodes[*of].places; ++i) {
      const bool left_some = run.state.nodes[i].status == NodeStatus::completed && run.state.nodes[i].detail == "ok";
      if (left_some) wanted.push_back(run.plan->nodes[i].name + each.substr(slash));
    }
  }
  return wanted;
}

json signals_of(const LoadedRun& run, std::uint32_t node) {
  json signals = json::object();
  for (const std::string& gate : run.plan->nodes[run.plan->nodes[node].each.value_or(node)].gates) {
    if (!gate.starts_with("signal:")) continue;
    const auto came = run.state.signals.find(gate.substr(7));
    if (came == run.state.signals.end()) continue;
    const auto payload = parse_json(came->second.empty() ? "null" : came->second);
    signals[came->first] = payload ? *payload : json();
  }
  return signals;
}

}  // namespace

Job job_of(const Flow& flow, const FlowPlan& plan, std::uint32_t index) {
  const PlanNode& node = plan.nodes.at(index);
  Job job;
  if (node.kind == NodeKind::job) {
    job = plan.job_at(index);
    job.env_vars.insert(flow.env_vars.begin(), flow.env_vars.end());  // Variables of the job take precedence.
  } else {
    job.script_type = to_string(node.kind);
    job.script = script_of(node);
  }
  job.id = flow.jobs.at(index);
  job.caller_id = flow.caller_id;
  job.context_id = flow.context_id;
  job.flow_id = flow.id;
  job.name = node.name;
  job.dependends.clear();
  for (const std::uint32_t i : read_by(plan, index)) {
    if (!plan.nodes[i].each) job.dependends.push_back(flow.jobs.at(i));
  }
  if (!node.supervisor_url.empty()) job.unknown.emplace_back("supervisor_url", node.supervisor_url);
  return job;
}

const std::vector<std::string>& DispatchFieldBuilder::elements(std::uint32_t each) {
  const auto known = elements_.find(each);
  if (known != elements_.end()) return known->second;
  return elements_[each] = elements_of(*run_.plan, run_.state, each).value_or(std::vector<std::string>());
}

FlowDispatch DispatchFieldBuilder::of(std::uint32_t node) {
  const FlowPlan& plan = *run_.plan;
  const PlanNode& planned = plan.nodes[node];
  FlowDispatch dispatch{node_job_key(run_, node), {}, {}};
  if (planned.each) dispatch.plant = job_of(run_.record, plan, node);
  // The records of jobs that were created before their flow do not have the environment of the flow.
  if (!run_.record.env_vars.empty()) {
    TextMap env_vars = plan.job_at(node).env_vars;
    env_vars.insert(run_.record.env_vars.begin(), run_.record.env_vars.end());  // Variables of the job take precedence.
    dispatch.set.emplace_back("env_vars", dump_json(json(env_vars)));
  }
  json data = json::object();
  if (!plan.values.empty()) data["inputs"] = inputs_json(plan);
  if (json signals = signals_of(run_, node); !signals.empty()) data["signals"] = std::move(signals);
  if (planned.each) {
    const auto& all = elements(*planned.each);
    const std::uint32_t element = plan.element_at(node);
    const auto value = element < all.size() ? parse_json(all[element]) : Result<json>(json());
    data["each"] = {{"index", element}, {"count", all.size()}, {"value", value.value_or(json())}};
  }
  const ResultSources readings = readings_of(run_, node);
  if (!readings.joins.empty()) data["joins"] = readings.joins;
  if (!readings.joins.empty() || planned.each) {
    dispatch.set.emplace_back("dependends", dump_json(json(readings.jobs)));
    if (!plan.job_at(node).inputs.empty()) dispatch.set.emplace_back("inputs", dump_json(json(wanted_of(run_, node))));
  }
  if (!data.empty()) dispatch.set.emplace_back(kFlowDataField, dump_json(data));
  return dispatch;
}

}  // namespace mycojobs
