// One look at a flow: what its journal says, and over that what the store holds of the jobs under way.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/ids.h"
#include "inspect/flow_reading.h"
#include "inspect/flow_words.h"
#include "inspect/flows.h"

namespace mycojobs {
namespace {

constexpr std::size_t kViewChunk = 200;  // places asked for in one call
constexpr std::size_t kSettled = 500;    // settled nodes whose jobs are looked at, for their times

std::string field(const JobPlaces& job, std::string_view name) {
  for (const auto& [key, value] : job.record) {
    if (key == name) return value;
  }
  return "";
}

std::uint64_t number(const JobPlaces& job, std::string_view name) {
  std::uint64_t value = 0;
  return parse_u64(field(job, name), value) ? value : 0;
}

NodeView node_of_plan(const PlanNode& planned, std::uint32_t index) {
  NodeView node;
  node.index = index;
  node.name = planned.name;
  node.kind = word(planned.kind);
  node.needs = planned.needs;
  node.error_node = planned.error_node;
  node.compensation = planned.compensation;
  node.on_call = planned.on_call;
  if (planned.kind == NodeKind::approval || planned.kind == NodeKind::pause) node.asks = planned.text;
  if (planned.kind == NodeKind::log) node.text = planned.text;
  return node;
}

std::vector<NodeView> nodes_of_plan(const FlowPlan& plan) {
  std::vector<NodeView> nodes;
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    NodeView node = node_of_plan(plan.nodes[i], i);
    for (const FlowCondition& condition : plan.nodes[i].when) {
      const bool known = condition.node < plan.nodes.size();
      node.when.push_back(describe(condition, known ? plan.nodes[condition.node].name : "?"));
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

void take_state(const NodeState& state, NodeView& node) {
  node.status = state.status;
  node.detail = state.detail;
  node.error = state.error;
  node.attempt = state.runs;
  node.since_ms = state.since_ms;
  node.until_ms = state.until_ms;
  node.gates = state.gates;
  node.approvers = state.approvers;
  node.child = state.child;
}

// Without a definition the record's own list of nodes is all there is.
std::vector<NodeView> nodes_of_record(const Flow& record) {
  std::map<Id, std::uint32_t> index_of;
  for (std::uint32_t i = 0; i < record.nodes.size(); ++i) index_of.emplace(record.nodes[i].id, i);
  std::vector<NodeView> nodes;
  for (std::uint32_t i = 0; i < record.nodes.size(); ++i) {
    const FlowNode& from = record.nodes[i];
    NodeView node;
    node.index = i;
    node.job = from.id;
    node.name = from.name;
    node.status = from.node_status;
    for (Id need : from.depends) {
      if (const auto found = index_of.find(need); found != index_of.end()) node.needs.push_back(found->second);
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// The nodes that there are; their numbers follow.
void keep_only(FlowView& view, const std::vector<bool>& there) {
  std::vector<std::uint32_t> to(view.nodes.size());
  std::vector<NodeView> kept;
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    to[i] = static_cast<std::uint32_t>(kept.size());
    if (there[i]) kept.push_back(std::move(view.nodes[i]));
  }
  if (kept.size() == there.size()) {
    view.nodes = std::move(kept);
    return;
  }
  for (NodeView& node : kept) {
    node.index = to[node.index];
    std::erase_if(node.needs, [&](std::uint32_t need) { return !there[need]; });
    for (std::uint32_t& need : node.needs) need = to[need];
    if (node.error_node) node.error_node = to[*node.error_node];
    if (node.compensation) node.compensation = to[*node.compensation];
  }
  view.nodes = std::move(kept);
}

class Look {
 public:
  Look(Store& store, Id context, FlowView& view) : store_(store), context_(context), view_(view) {}

  Result<void> lay_over_jobs(std::size_t max_jobs) {
    std::vector<std::uint32_t> chosen, settled;
    for (const NodeView& node : view_.nodes) {
      if (node.job_key.empty()) continue;
      const bool begun = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
      if (begun && chosen.size() < max_jobs) chosen.push_back(node.index);
      if (node.status >= NodeStatus::completed && node.detail != "skipped" && settled.size() < kSettled)
        settled.push_back(node.index);
    }
    settled.resize(std::min(settled.size(), max_jobs - chosen.size()));
    chosen.insert(chosen.end(), settled.begin(), settled.end());
    for (std::size_t at = 0; at < chosen.size(); at += kViewChunk) {
      const std::size_t count = std::min(kViewChunk, chosen.size() - at);
      std::vector<std::string> keys;
      for (std::size_t i = 0; i < count; ++i) keys.push_back(view_.nodes[chosen[at + i]].job_key);
      MJ_TRY(places, store_.places(context_, keys, false));
      for (std::size_t i = 0; i < std::min(count, places.size()); ++i) lay_over(view_.nodes[chosen[at + i]], places[i]);
    }
    return {};
  }

 private:
  void note(std::string line) {
    if (view_.anomalies.size() < kMaxAnomalies) view_.anomalies.push_back(std::move(line));
  }
  void lay_over(NodeView& node, const JobPlaces& job) {
    if (const std::uint64_t started = number(job, "started_ms"); started > 0) node.started_ms = started;
    node.attempt = std::max(node.attempt, job.claim.attempt);
    if (node.status >= NodeStatus::completed) {
      node.ended_ms = number(job, "ended_ms");
      std::uint64_t runner = 0;
      if (parse_u64(field(job, "runner_id"), runner)) node.runner = static_cast<Id>(runner);
      return;
    }
    if (job.record_type == "none" && !job.claim.present) {
      note(fmt::format("node {}: its job {} does not exist", node.name, node.job_key));
      node.detail = "absent";
      return;
    }
    const std::string& state = job.claim.state;
    if (state == "ended") {
      node.ended_ms = job.claim.ended_ms;
      node.detail = "ended";
      view_.unapplied.push_back(node.index);
      return;
    }
    if (node.kind != "job" && !node.kind.empty()) return;  // the flow runs it itself
    if (state == "live") {
      live(node, job);
    } else if (state == "planned") {
      note(fmt::format("node {}: the journal says dispatched, and its job {} is in no queue", node.name, node.job_key));
    } else if (!state.empty()) {
      waits(node, job);
    }
  }
  void live(NodeView& node, const JobPlaces& job) {
    node.status = NodeStatus::running;
    node.detail = job.claim.cancel ? "cancelling" : field(job, "detail");
    node.runner = job.claim.runner;
    node.until_ms = job.claim.until_ms;
    (job.claim.until_ms < view_.now_ms ? view_.expired : view_.claimed).push_back(node.index);
  }
  // queued, delayed, waiting, prerequisites, held.
  void waits(NodeView& node, const JobPlaces& job) {
    const std::string& state = job.claim.state;
    node.started_ms = 0;
    node.detail = state;
    if (state == "delayed") {
      node.status = NodeStatus::ready;
      node.detail = field(job, "detail") == "retry_wait" ? "retry_wait" : "delayed";
      node.until_ms = job.due_ms.value_or(0);
    }
    (state == "queued" ? view_.visible : view_.waiting).push_back(node.index);
  }

  Store& store_;
  Id context_;
  FlowView& view_;
};

void count(FlowView& view) {
  for (const NodeView& node : view.nodes) {
    if (node.status >= NodeStatus::completed) {
      view.applied.push_back(node.index);
      continue;
    }
    const bool asked = std::any_of(node.gates.begin(), node.gates.end(),
                                   [](const std::string& gate) { return gate.starts_with("approval:"); });
    const bool person = node.detail == "approval" || node.detail == "pause" || (node.detail == "gate" && asked);
    if (person) {
      view.manual.push_back(node.index);
    } else if (node.detail == "gate" || node.detail == "wait" || node.detail == "flow") {
      view.waiting.push_back(node.index);
    } else if (node.status == NodeStatus::pending || (node.status == NodeStatus::ready && node.until_ms == 0)) {
      view.planned.push_back(node.index);
    }
  }
  for (auto* list : {&view.visible, &view.claimed, &view.expired, &view.waiting, &view.unapplied})
    std::sort(list->begin(), list->end());
}

// What its jobs do says more than the journal.
std::string detail_of(const FlowView& view, const RunState& state, const Flow& record) {
  const bool begun = state.status != FlowStatus::dispatched;
  std::string word = flow_word(state.status, begun ? state.detail : record.detail);
  if (word != "running") return word;
  if (!view.claimed.empty() || !view.expired.empty()) return "running";
  if (!view.waiting.empty() || !view.manual.empty()) return "waiting";
  return view.visible.empty() ? "started" : "idle";
}

}  // namespace

FlowView view_of_plan(const FlowPlan& plan) {
  FlowView view;
  view.record.name = plan.name;
  view.record.definition_hash = plan.hash;
  view.record.env_vars = plan.env_vars;
  view.nodes = nodes_of_plan(plan);
  const RunState state = fresh(plan);
  std::vector<bool> there(view.nodes.size());
  for (std::uint32_t i = 0; i < there.size(); ++i) there[i] = !is_unborn(plan, state, i);
  keep_only(view, there);
  for (const NodeView& node : view.nodes) view.planned.push_back(node.index);
  return view;
}

Result<FlowView> look_at_flow(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max_jobs) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  return view_of(std::move(reading), flows, store, context, max_jobs);
}

Result<FlowView> view_of(FlowReading reading, FlowStore& flows, Store& store, Id context, std::size_t max_jobs) {
  FlowView view;
  view.record = std::move(reading.record);
  view.revision = reading.revision;
  view.checkpoint_at = reading.checkpoint_at;
  view.events_waiting = reading.events.size();
  view.now_ms = reading.now_ms;
  view.anomalies = std::move(reading.anomalies);
  view.has_plan = reading.plan.has_value();
  if (view.has_plan) {
    view.nodes = nodes_of_plan(*reading.plan);
    for (NodeView& node : view.nodes) {
      if (node.index < reading.state.nodes.size()) take_state(reading.state.nodes[node.index], node);
      if (node.index < view.record.jobs.size()) node.job = view.record.jobs[node.index];
    }
    std::vector<bool> there(view.nodes.size());
    for (std::uint32_t i = 0; i < there.size(); ++i) {
      there[i] = i >= reading.state.nodes.size() || !is_unborn(*reading.plan, reading.state, i);
    }
    keep_only(view, there);
  } else {
    view.nodes = nodes_of_record(view.record);
    reading.state.status = view.record.status;
    reading.state.detail = view.record.detail;
  }
  for (NodeView& node : view.nodes) {
    if (node.job != 0 && view.record.caller_id != 0) node.job_key = job_key(view.record.caller_id, node.job);
  }
  MJ_CHECK(Look(store, context, view).lay_over_jobs(max_jobs));
  count(view);
  if (view.has_plan) {
    if (reading.state.started_ms > 0) view.record.started_ms = reading.state.started_ms;
    if (reading.state.ended_ms > 0) view.record.ended_ms = reading.state.ended_ms;
    if (!reading.state.error.empty()) view.record.error = reading.state.error;
  }
  view.status = word(reading.state.status);
  view.detail = detail_of(view, reading.state, view.record);
  if (view.has_plan) MJ_CHECK(take_answers(flows, context, *reading.plan, view));
  return view;
}

}  // namespace mycojobs
