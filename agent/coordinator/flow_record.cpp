#include <nlohmann/json.hpp>

#include "coordinator/progress_parts.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

constexpr std::size_t kResultsAtOnce = 100;  // jobs; each may have a result of a mebibyte

// A job's result as it stands on its record. Another client may have written values that are no texts.
HandedBack values_of(const std::string& result, const std::string& json_keys) {
  const auto parsed = parse_json(result);
  if (!parsed) return {};
  HandedBack values = handed_back(*parsed);
  const auto keys = parse_json(json_keys.empty() ? "[]" : json_keys);
  for (const auto& key : keys && keys->is_array() ? *keys : nlohmann::json::array()) {
    if (key.is_string()) values.json.push_back(key.get<std::string>());
  }
  return values;
}

}  // namespace

std::vector<FlowNode> nodes_of(const LoadedRun& run) {
  std::vector<FlowNode> nodes;
  nodes.reserve(run.plan->nodes.size());
  for (std::size_t i = 0; i < run.plan->nodes.size(); ++i) {
    if (is_unborn(*run.plan, run.state, static_cast<std::uint32_t>(i))) continue;
    const PlanNode& planned = run.plan->nodes[i];
    FlowNode node;
    node.id = run.record.jobs.at(i);
    node.name = planned.name;
    for (const std::uint32_t need : planned.needs) {
      if (!is_unborn(*run.plan, run.state, need)) node.depends.push_back(run.record.jobs.at(need));
    }
    node.prerequisites = planned.gates;
    const auto& of_job = run.plan->job_at(static_cast<std::uint32_t>(i)).prerequisites;
    if (planned.kind == NodeKind::job)
      node.prerequisites.insert(node.prerequisites.end(), of_job.begin(), of_job.end());
    node.supervisor_url = planned.supervisor_url;
    node.node_status = run.state.nodes.at(i).status;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::string nodes_text(const LoadedRun& run) {
  auto list = nlohmann::json::array();
  for (const FlowNode& node : nodes_of(run)) list.push_back(to_json(node));
  return dump_json(list);
}

std::uint64_t result_bytes(const TextMap& values) {
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : values) bytes += key.size() + value.size();
  return bytes;
}

void read_result(const PlanNode& node, const std::string& result, JobSeen& seen) {
  if (result.empty()) return;
  TextMap all = values_of(result, "").texts;
  seen.result_bytes = result_bytes(all);
  for (const std::string& key : node.watched) {
    if (auto found = all.find(key); found != all.end()) seen.values[key] = std::move(found->second);
  }
}

Result<HandedBack> gather_results(FlowStore& store, const Step& step) {
  const LoadedRun& run = step.run();
  std::map<std::uint32_t, HandedBack> of_this_step;  // not stored yet
  for (const Effect& effect : step.effects) {
    if (effect.kind == Effect::Kind::finish) of_this_step[effect.node] = {effect.values, effect.values_json};
  }
  HandedBack all;
  std::size_t room = kMaxFlowResultBytes;
  // decide() has ended a flow whose nodes give more than there is room for; then the record has what fits.
  const auto add = [&](std::uint32_t node, const HandedBack& values) {
    const std::size_t bytes = result_bytes(values.texts);
    if (bytes > room) return;
    room -= bytes;
    const std::string prefix = run.plan->nodes[node].name + ".";
    for (const auto& [key, value] : values.texts) all.texts[prefix + key] = value;
    for (const std::string& key : values.json) {
      if (values.texts.contains(key)) all.json.push_back(prefix + key);
    }
  };
  std::vector<std::string> keys;
  std::vector<std::uint32_t> of;
  const auto read = [&]() -> Result<void> {
    MJ_TRY(views, store.jobs(run.record.context_id, keys));
    for (std::size_t i = 0; i < views.size() && i < of.size(); ++i) {
      if (views[i].status == "finished") add(of[i], values_of(views[i].result, views[i].result_json));
    }
    keys.clear();
    of.clear();
    return {};
  };
  for (std::uint32_t i = 0; i < run.state.nodes.size(); ++i) {
    if (run.state.nodes[i].status != NodeStatus::completed) continue;
    if (const auto own = of_this_step.find(i); own != of_this_step.end()) {
      add(i, own->second);
      continue;
    }
    keys.push_back(node_job_key(run, i));
    of.push_back(i);
    if (keys.size() == kResultsAtOnce) MJ_CHECK(read());
  }
  if (!keys.empty()) MJ_CHECK(read());
  return all;
}

}  // namespace mycojobs
