// One look at a flow: what its journal says, over that what the store holds of the jobs under way, and what people
// said.
#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/utf8.h"
#include "inspect/flow_reading.h"
#include "inspect/flow_words.h"
#include "inspect/flows.h"

namespace mycojobs {

namespace {

constexpr std::size_t kFacts = 20000;  // a longer journal is not looked through to its end

// A control fact, as an answer and what it was about; nothing: it is no control that can be read.
struct Said {
  FlowAnswer answer;
  std::string verb, target;
};
std::optional<Said> said_by(const RunFact& fact) {
  if (fact.kind != "control" || fact.node) return std::nullopt;
  const auto more = parse_json(fact.more.empty() ? "{}" : fact.more);
  if (!more || !more->is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto found = more->find(name);
    return found != more->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Said said{{"", 0, text("comment"), fact.at_ms}, text("verb"), text("target")};
  said.answer.what = done_word(said.verb);
  const auto actor = more->find("actor");
  if (actor != more->end() && actor->is_number_unsigned() && actor->get<std::uint64_t>() <= UINT32_MAX)
    said.answer.actor = actor->get<Id>();
  return said;
}

bool asks_people(const FlowPlan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.kind == NodeKind::approval || node.kind == NodeKind::pause || !node.gates.empty();
  });
}

// By name: a view leaves out what the run has not got yet.
using Planned = std::map<std::string_view, const PlanNode*>;
Planned by_name(const FlowPlan& plan) {
  Planned all;
  for (const PlanNode& node : plan.nodes) all.emplace(node.name, &node);
  return all;
}

void take_answer(const Planned& plan, const Said& said, FlowView& view) {
  if (said.target.empty()) {
    const std::string& wanted = view.detail == "cancelled" ? "cancelling" : view.detail;
    const bool holds =
        (wanted == "paused" && said.verb == "pause") || (wanted == "cancelling" && said.verb == "cancel");
    if (holds) view.said = said.answer;
    return;
  }
  const std::string gate = (said.verb == "signal" ? "signal:" : "approval:") + said.target;
  for (NodeView& node : view.nodes) {
    const auto planned = plan.find(node.name);
    if (planned == plan.end()) continue;
    const auto& gates = planned->second->gates;
    const bool named = said.verb != "signal" && node.name == said.target;
    if (named || std::find(gates.begin(), gates.end(), gate) != gates.end()) node.answers.push_back(said.answer);
  }
}

}  // namespace

std::string describe(const FlowAnswer& answer) {
  return fmt::format("{} by {}{}{}", answer.what, answer.actor, answer.comment.empty() ? "" : ": ", answer.comment);
}

// Only where somebody may have said something: a journal can be long.
Result<void> take_answers(FlowStore& flows, Id context, const FlowPlan& plan, FlowView& view) {
  const bool held = view.detail == "paused" || view.detail == "cancelling" || view.detail == "cancelled";
  if (!held && !asks_people(plan)) return {};
  std::vector<std::string> told_already;
  MJ_TRY(facts, read_facts(flows, context, view.record.id, kFacts, told_already));
  const Planned planned = by_name(plan);
  for (const RunFact& fact : facts) {
    if (const auto said = said_by(fact)) take_answer(planned, *said, view);
  }
  return {};
}

// One look at a flow: what its journal says, and over that what the store holds of the jobs under way.

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

namespace {

using nlohmann::json;

json names_of(const FlowView& view, const std::vector<std::uint32_t>& indexes) {
  json names = json::array();
  for (std::uint32_t index : indexes) {
    if (index < view.nodes.size()) names.push_back(to_utf8(view.nodes[index].name));
  }
  return names;
}

void put_if(json& object, const char* name, const std::string& text) {
  if (!text.empty()) object[name] = to_utf8(text);
}
void put_if(json& object, const char* name, std::uint64_t number) {
  if (number != 0) object[name] = number;
}

json json_of(const FlowAnswer& answer) {
  json out{{"what", to_utf8(answer.what)}, {"actor", answer.actor}, {"at_ms", answer.at_ms}};
  put_if(out, "comment", answer.comment);
  return out;
}

}  // namespace

json to_json(const NodeView& node) {
  json out{
      {"index", node.index}, {"name", to_utf8(node.name)}, {"node_status", word(node.status)}, {"needs", node.needs}};
  put_if(out, "id", node.job);
  put_if(out, "job", node.job_key);
  put_if(out, "kind", node.kind);
  put_if(out, "detail", node.detail);
  put_if(out, "error", node.error);
  put_if(out, "attempt", node.attempt);
  put_if(out, "since_ms", node.since_ms);
  put_if(out, "until_ms", node.until_ms);
  put_if(out, "started_ms", node.started_ms);
  put_if(out, "ended_ms", node.ended_ms);
  put_if(out, "runner", node.runner);
  put_if(out, "child", node.child);
  put_if(out, "asks", node.asks);
  for (const FlowAnswer& answer : node.answers) out["answers"].push_back(json_of(answer));
  if (node.on_call) out["on_call"] = true;
  if (node.error_node) out["error_node"] = *node.error_node;
  if (node.compensation) out["compensation"] = *node.compensation;
  if (!node.when.empty()) out["when"] = node.when;
  if (!node.gates.empty()) out["gates"] = node.gates;
  if (!node.approvers.empty()) out["approvers"] = node.approvers;
  return out;
}

json to_json(const FlowView& view) {
  json out{{"flow", view.record.id},
           {"caller_id", view.record.caller_id},
           {"name", to_utf8(view.record.name)},
           {"status", view.status},
           {"detail", view.detail},
           {"definition_hash", to_utf8(view.record.definition_hash)},
           {"has_definition", view.has_plan},
           {"revision", view.revision},
           {"checkpoint_at", view.checkpoint_at},
           {"events_waiting", view.events_waiting},
           {"now_ms", view.now_ms},
           {"nodes", json::array()},
           {"anomalies", json::array()}};
  put_if(out, "context_id", view.record.context_id);
  if (view.said) out["said"] = json_of(*view.said);
  put_if(out, "error", view.record.error);
  put_if(out, "parent", view.record.parent);
  if (auto inputs = inputs_of(view.record); !inputs.is_null()) out["inputs"] = std::move(inputs);
  put_if(out, "created_at", view.record.created_at);
  put_if(out, "started_ms", view.record.started_ms);
  put_if(out, "ended_ms", view.record.ended_ms);
  for (const NodeView& node : view.nodes) out["nodes"].push_back(to_json(node));
  for (const std::string& line : view.anomalies) out["anomalies"].push_back(to_utf8(line));
  out["planned"] = names_of(view, view.planned);
  out["visible"] = names_of(view, view.visible);
  out["claimed"] = names_of(view, view.claimed);
  out["expired"] = names_of(view, view.expired);
  out["waiting"] = names_of(view, view.waiting);
  out["manual"] = names_of(view, view.manual);
  out["unapplied"] = names_of(view, view.unapplied);
  out["applied"] = names_of(view, view.applied);
  out["terminal"] = view.status == "finished" || view.status == "error";
  return out;
}

}  // namespace mycojobs
