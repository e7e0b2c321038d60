#include "inspect/flow_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "inspect/flow_drawing.h"
#include "inspect/job_view.h"
#include "inspect/runner_view.h"
#include "jobs/transitions.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr auto kDisplayStates = std::to_array<FlowDisplayState>({
    {"creating", FlowStatus::dispatched, "its records are being written"},
    {"new", FlowStatus::dispatched, "it was created but not started"},
    {"started", FlowStatus::started, "it has started, but none of its jobs is in a queue yet"},
    {"idle", FlowStatus::started, "its jobs are in their queues, but none is running"},
    {"running", FlowStatus::started, "a job of it runs"},
    {"waiting", FlowStatus::started,
     "no node is running: nodes wait for approvals, times, signals, prerequisites or other flows"},
    {"paused", FlowStatus::started, "it is paused: running nodes continue, no node starts"},
    {"stopping", FlowStatus::started, "a node failed: running nodes may end, no node starts"},
    {"cancelling", FlowStatus::started, "a cancellation was requested: running jobs are requested to end"},
    {"compensating", FlowStatus::started, "the flow fails: completed nodes are undone"},
    {"completed", FlowStatus::finished, "all nodes completed"},
    {"failed", FlowStatus::error, "a failure was not handled"},
    {"cancelled", FlowStatus::error, "it was cancelled"},
    {"timeout", FlowStatus::error, "its time was over"},
    {"result_too_large", FlowStatus::error, "the results of its nodes exceed the limit of a flow's result"},
});

constexpr std::pair<std::string_view, std::string_view> kPastTenses[] = {
    {"pause", "paused"},     {"resume", "resumed"},   {"approve", "approved"}, {"reject", "rejected"},
    {"signal", "signalled"}, {"cancel", "cancelled"}, {"retry", "retried"}};

}  // namespace

std::vector<FlowDisplayState> flow_display_states() { return {kDisplayStates.begin(), kDisplayStates.end()}; }

std::string to_display_state(FlowStatus status, std::string_view detail) {
  const auto* row = std::find_if(kDisplayStates.begin(), kDisplayStates.end(), [&](const FlowDisplayState& candidate) {
    return candidate.status == status && candidate.state == detail;
  });
  if (row != kDisplayStates.end()) return std::string(row->state);
  switch (status) {
    case FlowStatus::dispatched:
      return "new";
    case FlowStatus::started:
      return "running";
    case FlowStatus::finished:
      return "completed";
    case FlowStatus::error:
      break;
  }
  return "failed";
}

bool is_running_display_state(std::string_view state) {
  return state == "started" || state == "idle" || state == "running" || state == "waiting";
}

bool has_ended(const FlowView& view) { return view.status == kFlowStatusFinished || view.status == kFlowStatusError; }

std::string past_tense(std::string_view verb) {
  for (const auto& [present, past] : kPastTenses) {
    if (verb == present) return std::string(past);
  }
  return std::string(verb);
}

namespace {

void add_anomaly(std::vector<std::string>& anomalies, std::string line) {
  if (anomalies.size() < kMaxAnomalies) anomalies.push_back(std::move(line));
}

Result<void> load_plan(FlowStore& flows, Id context, LoadedFlow& out) {
  const std::string& hash = out.record.definition_hash;
  if (hash.empty()) {
    out.plan_problem = "its record names no definition";
    return {};
  }
  auto text = flows.definition(context, hash);
  if (!text && text.error().code == Code::unavailable) return tl::unexpected(text.error());
  if (!text) {
    out.plan_problem = text.error().message;
    return {};
  }
  auto plan = parse_stored_plan(*text, hash);
  if (plan) {
    out.plan = std::move(*plan);
  } else {
    out.plan_problem = plan.error().message;
  }
  return {};
}

// Folds the facts up to the first read. The journal may grow in the meantime; later facts belong to the next read.
Result<void> fold_facts(FlowStore& flows, Id context, LoadedFlow& out, FlowReadResult first) {
  out.state = initial_state(*out.plan);
  FlowReadResult page = std::move(first);
  if (!page.checkpoint.empty()) {
    if (auto restored = restore(*out.plan, page.checkpoint)) {
      out.state = std::move(*restored);
    } else {
      MJ_TRY(from_start, flows.read(context, out.record.id, 0));
      page = std::move(from_start);
    }
  }
  for (;;) {
    for (std::string& line : page.anomalies) add_anomaly(out.anomalies, std::move(line));
    for (const RunFact& fact : page.facts) fold(*out.plan, out.state, fact);
    if (!page.has_more || page.facts.empty()) break;
    const std::uint64_t after = page.facts.back().revision;
    MJ_TRY(next, flows.read(context, out.record.id, after));
    page = std::move(next);
  }
  for (const std::string& line : out.state.anomalies) add_anomaly(out.anomalies, line);
  return {};
}

}  // namespace

Result<LoadedFlow> load_flow(FlowStore& flows, Id context, Id flow) {
  MJ_TRY(first, flows.read(context, flow, std::nullopt));
  if (first.record.empty()) {
    return fail(Code::not_found,
                fmt::format("flow {} is unknown in context {}; `mycojobs flow list` shows all flows", flow, context));
  }
  LoadedFlow out;
  auto decoded = decode<Flow>(first.record);
  out.record = std::move(decoded.record);
  for (const FieldProblem& problem : decoded.problems) add_anomaly(out.anomalies, "record: " + problem.message);
  if (out.record.id != flow) {
    add_anomaly(out.anomalies, fmt::format("record: its id is {}, but its key has {}", out.record.id, flow));
    out.record.id = flow;
  }
  out.revision = first.revision;
  out.checkpoint_revision = first.checkpoint_revision;
  out.now_ms = first.now_ms;
  out.events = first.events;
  MJ_CHECK(load_plan(flows, context, out));
  if (out.plan) {
    MJ_CHECK(fold_facts(flows, context, out, std::move(first)));
    return out;
  }
  add_anomaly(out.anomalies, "definition: " + out.plan_problem);
  for (std::string& line : first.anomalies) add_anomaly(out.anomalies, std::move(line));
  return out;
}

Result<std::vector<RunFact>> read_facts(FlowStore& flows, Id context, Id flow, std::size_t max,
                                        std::vector<std::string>& anomalies) {
  std::vector<RunFact> facts;
  std::uint64_t after = 0;
  while (facts.size() < max) {
    MJ_TRY(page, flows.read(context, flow, after));
    if (page.record.empty())
      return fail(Code::not_found, fmt::format("flow {} does not exist in context {}", flow, context));
    for (std::string& line : page.anomalies) add_anomaly(anomalies, std::move(line));
    for (RunFact& fact : page.facts) {
      if (facts.size() < max) facts.push_back(std::move(fact));
    }
    if (!page.has_more || page.facts.empty()) break;
    // Another client may have written times and revisions. The loop continues only while the revisions increase.
    if (facts.empty() || facts.back().revision <= after) break;
    after = facts.back().revision;
  }
  return facts;
}

// Answers of users, from the control facts of the journal.

namespace {

constexpr std::size_t kMaxControlFacts = 20000;  // later facts of a longer journal are not searched for answers

// A control fact as an answer, with its target: a node, a gate, or empty for the flow.
struct Control {
  FlowAnswer answer;
  std::string verb, target;
};
std::optional<Control> parse_control(const RunFact& fact) {
  if (fact.kind != "control" || fact.node) return std::nullopt;
  const auto fields = parse_json(fact.data_json.empty() ? "{}" : fact.data_json);
  if (!fields || !fields->is_object()) return std::nullopt;
  Control control{
      {"", 0, text_field(*fields, "comment"), fact.at_ms}, text_field(*fields, "verb"), text_field(*fields, "target")};
  control.answer.action = past_tense(control.verb);
  const auto actor = fields->find("actor");
  if (actor != fields->end() && actor->is_number_unsigned() && actor->get<std::uint64_t>() <= UINT32_MAX)
    control.answer.actor = actor->get<Id>();
  return control;
}

bool can_have_answers(const FlowPlan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.kind == NodeKind::approval || node.kind == NodeKind::pause || !node.gates.empty();
  });
}

// The index is by name, because a view omits nodes that the run does not have yet.
using PlanNodesByName = std::map<std::string_view, const PlanNode*>;
PlanNodesByName index_by_name(const FlowPlan& plan) {
  PlanNodesByName nodes_by_name;
  for (const PlanNode& node : plan.nodes) nodes_by_name.emplace(node.name, &node);
  return nodes_by_name;
}

void add_answer(const PlanNodesByName& plan, const Control& control, FlowView& view) {
  if (control.target.empty()) {
    const std::string& detail = view.detail == "cancelled" ? "cancelling" : view.detail;
    const bool is_current_request =
        (detail == "paused" && control.verb == "pause") || (detail == "cancelling" && control.verb == "cancel");
    if (is_current_request) view.hold_request = control.answer;
    return;
  }
  const std::string gate = (control.verb == "signal" ? "signal:" : "approval:") + control.target;
  for (NodeView& node : view.nodes) {
    const auto planned = plan.find(node.name);
    if (planned == plan.end()) continue;
    const auto& gates = planned->second->gates;
    const bool is_target = control.verb != "signal" && node.name == control.target;
    if (is_target || std::find(gates.begin(), gates.end(), gate) != gates.end()) node.answers.push_back(control.answer);
  }
}

}  // namespace

std::string describe(const FlowAnswer& answer) {
  return fmt::format("{} by {}{}{}", answer.action, answer.actor, answer.comment.empty() ? "" : ": ", answer.comment);
}

// Reads the journal only if it can have answers, since a journal can be long.
Result<void> read_control_answers(FlowStore& flows, Id context, const FlowPlan& plan, FlowView& view) {
  const bool has_hold_request = view.detail == "paused" || view.detail == "cancelling" || view.detail == "cancelled";
  if (!has_hold_request && !can_have_answers(plan)) return {};
  std::vector<std::string> ignored_anomalies;
  MJ_TRY(facts, read_facts(flows, context, view.record.id, kMaxControlFacts, ignored_anomalies));
  const PlanNodesByName planned = index_by_name(plan);
  for (const RunFact& fact : facts) {
    if (const auto control = parse_control(fact)) add_answer(planned, *control, view);
  }
  return {};
}

// Building a view from the state of the run and the active jobs.

namespace {

constexpr std::size_t kMaxJobsPerRead = 200;  // jobs whose state is read by one call
constexpr std::size_t kMaxSettledJobs = 500;  // settled nodes whose job is read, for its times

NodeView make_node(const PlanNode& planned, std::uint32_t index) {
  NodeView node;
  node.index = index;
  node.name = planned.name;
  node.kind = to_string(planned.kind);
  node.needs = planned.needs;
  node.error_node = planned.error_node;
  node.compensation = planned.compensation;
  node.on_call = planned.on_call;
  if (planned.kind == NodeKind::approval || planned.kind == NodeKind::pause) node.prompt = planned.text;
  if (planned.kind == NodeKind::log) node.text = planned.text;
  return node;
}

std::vector<NodeView> make_nodes(const FlowPlan& plan) {
  std::vector<NodeView> nodes;
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    NodeView node = make_node(plan.nodes[i], i);
    for (const FlowCondition& condition : plan.nodes[i].when) {
      const bool is_in_plan = condition.node < plan.nodes.size();
      node.conditions.push_back(describe(condition, is_in_plan ? plan.nodes[condition.node].name : "?"));
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

void set_state(const NodeState& state, NodeView& node) {
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

// Makes the nodes from the record, for a flow without a definition.
std::vector<NodeView> make_nodes_from_record(const Flow& record) {
  std::map<Id, std::uint32_t> node_indexes;
  for (std::uint32_t i = 0; i < record.nodes.size(); ++i) node_indexes.emplace(record.nodes[i].id, i);
  std::vector<NodeView> nodes;
  for (std::uint32_t i = 0; i < record.nodes.size(); ++i) {
    const FlowNode& source = record.nodes[i];
    NodeView node;
    node.index = i;
    node.job = source.id;
    node.name = source.name;
    node.status = source.node_status;
    for (Id need : source.depends) {
      if (const auto found = node_indexes.find(need); found != node_indexes.end()) node.needs.push_back(found->second);
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// Removes the nodes that are not in `present` and renumbers the others.
void retain_nodes(FlowView& view, const std::vector<bool>& present) {
  std::vector<std::uint32_t> new_indexes(view.nodes.size());
  std::vector<NodeView> retained;
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    new_indexes[i] = static_cast<std::uint32_t>(retained.size());
    if (present[i]) retained.push_back(std::move(view.nodes[i]));
  }
  if (retained.size() == present.size()) {
    view.nodes = std::move(retained);
    return;
  }
  for (NodeView& node : retained) {
    node.index = new_indexes[node.index];
    std::erase_if(node.needs, [&](std::uint32_t need) { return !present[need]; });
    for (std::uint32_t& need : node.needs) need = new_indexes[need];
    if (node.error_node) node.error_node = new_indexes[*node.error_node];
    if (node.compensation) node.compensation = new_indexes[*node.compensation];
  }
  view.nodes = std::move(retained);
}

class FlowViewBuilder {
 public:
  FlowViewBuilder(Store& store, Id context, FlowView& view) : store_(store), context_(context), view_(view) {}

  Result<void> merge_jobs(std::size_t max_jobs) {
    std::vector<std::uint32_t> selected, settled;
    for (const NodeView& node : view_.nodes) {
      if (node.job_key.empty()) continue;
      const bool has_started = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
      if (has_started && selected.size() < max_jobs) selected.push_back(node.index);
      if (node.status >= NodeStatus::completed && node.detail != "skipped" && settled.size() < kMaxSettledJobs)
        settled.push_back(node.index);
    }
    settled.resize(std::min(settled.size(), max_jobs - selected.size()));
    selected.insert(selected.end(), settled.begin(), settled.end());
    for (std::size_t begin = 0; begin < selected.size(); begin += kMaxJobsPerRead) {
      const std::size_t count = std::min(kMaxJobsPerRead, selected.size() - begin);
      std::vector<std::string> keys;
      for (std::size_t i = 0; i < count; ++i) keys.push_back(view_.nodes[selected[begin + i]].job_key);
      MJ_TRY(states, store_.job_states(context_, keys, false));
      for (std::size_t i = 0; i < std::min(count, states.size()); ++i)
        merge_job(view_.nodes[selected[begin + i]], states[i]);
    }
    return {};
  }

 private:
  void add_anomaly(std::string line) {
    if (view_.anomalies.size() < kMaxAnomalies) view_.anomalies.push_back(std::move(line));
  }
  void merge_job(NodeView& node, const JobStoreState& job) {
    if (const std::uint64_t started = number_of(job.record, "started_ms"); started > 0) node.started_ms = started;
    node.attempt = std::max(node.attempt, job.claim.attempt);
    if (node.status >= NodeStatus::completed) {
      node.ended_ms = number_of(job.record, "ended_ms");
      std::uint64_t runner = 0;
      if (parse_u64(field_of(job.record, "runner_id"), runner)) node.runner = static_cast<Id>(runner);
      return;
    }
    if (job.record_type == "none" && !job.claim.exists) {
      add_anomaly(fmt::format("node {}: its job {} does not exist", node.name, node.job_key));
      node.detail = "absent";
      return;
    }
    const std::string& state = job.claim.state;
    if (state == kJobStateEnded) {
      node.ended_ms = job.claim.ended_ms;
      node.detail = "ended";
      view_.unapplied.push_back(node.index);
      return;
    }
    if (node.kind != "job" && !node.kind.empty()) return;  // the flow executes this node itself
    if (state == kJobStateLive) {
      merge_running_job(node, job);
    } else if (state == kJobStatePlanned) {
      add_anomaly(
          fmt::format("node {}: the journal says dispatched, and its job {} is in no queue", node.name, node.job_key));
    } else if (!state.empty()) {
      merge_waiting_job(node, job);
    }
  }
  void merge_running_job(NodeView& node, const JobStoreState& job) {
    node.status = NodeStatus::running;
    node.detail = job.claim.cancel_requested ? "cancelling" : std::string(field_of(job.record, "detail"));
    node.runner = job.claim.runner;
    node.until_ms = job.claim.lease_until_ms;
    (job.claim.lease_until_ms < view_.now_ms ? view_.expired : view_.claimed).push_back(node.index);
  }
  // Merges a job in state queued, delayed, waiting, prerequisites or held.
  void merge_waiting_job(NodeView& node, const JobStoreState& job) {
    const std::string& state = job.claim.state;
    node.started_ms = 0;
    node.detail = state;
    if (state == kJobStateDelayed) {
      node.status = NodeStatus::ready;
      const std::string detail(field_of(job.record, "detail"));
      node.detail = detail == "retry_wait" || detail == "quota" ? detail : "delayed";
      node.until_ms = job.due_ms.value_or(0);
    }
    (state == kJobStateQueued ? view_.visible : view_.waiting).push_back(node.index);
  }

  Store& store_;
  Id context_;
  FlowView& view_;
};

void group_nodes(FlowView& view) {
  for (const NodeView& node : view.nodes) {
    if (node.status >= NodeStatus::completed) {
      view.applied.push_back(node.index);
      continue;
    }
    const bool has_approval_gate = std::any_of(node.gates.begin(), node.gates.end(),
                                               [](const std::string& gate) { return gate.starts_with("approval:"); });
    const bool needs_user =
        node.detail == "approval" || node.detail == "pause" || (node.detail == "gate" && has_approval_gate);
    if (needs_user) {
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

// Returns the displayed state. The states of the jobs refine the state "running" of the journal.
std::string find_display_state(const FlowView& view, const RunState& state, const Flow& record) {
  const bool has_started = state.status != FlowStatus::dispatched;
  std::string word = to_display_state(state.status, has_started ? state.detail : record.detail);
  if (word != "running") return word;
  if (!view.claimed.empty() || !view.expired.empty()) return "running";
  if (!view.waiting.empty() || !view.manual.empty()) return "waiting";
  return view.visible.empty() ? "started" : "idle";
}

}  // namespace

FlowView make_plan_view(const FlowPlan& plan) {
  FlowView view;
  view.record.name = plan.name;
  view.record.definition_hash = plan.hash;
  view.record.env_vars = plan.env_vars;
  view.nodes = make_nodes(plan);
  const RunState state = initial_state(plan);
  std::vector<bool> present(view.nodes.size());
  for (std::uint32_t i = 0; i < present.size(); ++i) present[i] = !has_not_started(plan, state, i);
  retain_nodes(view, present);
  for (const NodeView& node : view.nodes) view.planned.push_back(node.index);
  return view;
}

Result<FlowView> inspect_flow(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max_jobs) {
  MJ_TRY(loaded_flow, load_flow(flows, context, flow));
  return make_flow_view(std::move(loaded_flow), flows, store, context, max_jobs);
}

Result<std::string> read_display_state(FlowStore& flows, Store& store, Id context, const Flow& flow) {
  std::string word = to_display_state(flow.status, flow.detail);
  if (word != "running") return word;
  auto view = inspect_flow(flows, store, context, flow.id);
  if (view) return std::move(view->detail);
  if (view.error().code == Code::not_found) return word;  // deleted in the meantime
  return tl::unexpected<Error>(std::move(view).error());
}

Result<FlowView> make_flow_view(LoadedFlow loaded_flow, FlowStore& flows, Store& store, Id context,
                                std::size_t max_jobs) {
  FlowView view;
  view.record = std::move(loaded_flow.record);
  view.revision = loaded_flow.revision;
  view.checkpoint_revision = loaded_flow.checkpoint_revision;
  view.events_waiting = loaded_flow.events.size();
  view.now_ms = loaded_flow.now_ms;
  view.anomalies = std::move(loaded_flow.anomalies);
  view.has_plan = loaded_flow.plan.has_value();
  if (view.has_plan) {
    view.nodes = make_nodes(*loaded_flow.plan);
    for (NodeView& node : view.nodes) {
      if (node.index < loaded_flow.state.nodes.size()) set_state(loaded_flow.state.nodes[node.index], node);
      if (node.index < view.record.jobs.size()) node.job = view.record.jobs[node.index];
    }
    std::vector<bool> present(view.nodes.size());
    for (std::uint32_t i = 0; i < present.size(); ++i) {
      present[i] = i >= loaded_flow.state.nodes.size() || !has_not_started(*loaded_flow.plan, loaded_flow.state, i);
    }
    retain_nodes(view, present);
  } else {
    view.nodes = make_nodes_from_record(view.record);
    loaded_flow.state.status = view.record.status;
    loaded_flow.state.detail = view.record.detail;
  }
  for (NodeView& node : view.nodes) {
    if (node.job != 0 && view.record.caller_id != 0) node.job_key = job_key(view.record.caller_id, node.job);
  }
  MJ_CHECK(FlowViewBuilder(store, context, view).merge_jobs(max_jobs));
  group_nodes(view);
  if (view.has_plan) {
    if (loaded_flow.state.started_ms > 0) view.record.started_ms = loaded_flow.state.started_ms;
    if (loaded_flow.state.ended_ms > 0) view.record.ended_ms = loaded_flow.state.ended_ms;
    if (!loaded_flow.state.error.empty()) view.record.error = loaded_flow.state.error;
  }
  view.status = to_string(loaded_flow.state.status);
  view.detail = find_display_state(view, loaded_flow.state, view.record);
  if (view.has_plan) MJ_CHECK(read_control_answers(flows, context, *loaded_flow.plan, view));
  return view;
}

namespace {

using nlohmann::json;

json list_names(const FlowView& view, const std::vector<std::uint32_t>& indexes) {
  json names = json::array();
  for (std::uint32_t index : indexes) {
    if (index < view.nodes.size()) names.push_back(to_utf8(view.nodes[index].name));
  }
  return names;
}

void set_if_present(json& object, const char* name, const std::string& text) {
  if (!text.empty()) object[name] = to_utf8(text);
}
void set_if_present(json& object, const char* name, std::uint64_t number) {
  if (number != 0) object[name] = number;
}

json answer_to_json(const FlowAnswer& answer) {
  json out{{"what", to_utf8(answer.action)}, {"actor", answer.actor}, {"at_ms", answer.at_ms}};
  set_if_present(out, "comment", answer.comment);
  return out;
}

}  // namespace

json to_json(const NodeView& node) {
  json out{{"index", node.index},
           {"name", to_utf8(node.name)},
           {"node_status", to_string(node.status)},
           {"needs", node.needs}};
  set_if_present(out, "id", node.job);
  set_if_present(out, "job", node.job_key);
  set_if_present(out, "kind", node.kind);
  set_if_present(out, "detail", node.detail);
  set_if_present(out, "error", node.error);
  set_if_present(out, "attempt", node.attempt);
  set_if_present(out, "since_ms", node.since_ms);
  set_if_present(out, "until_ms", node.until_ms);
  set_if_present(out, "started_ms", node.started_ms);
  set_if_present(out, "ended_ms", node.ended_ms);
  set_if_present(out, "runner", node.runner);
  set_if_present(out, "child", node.child);
  set_if_present(out, "asks", node.prompt);
  for (const FlowAnswer& answer : node.answers) out["answers"].push_back(answer_to_json(answer));
  if (node.on_call) out["on_call"] = true;
  if (node.error_node) out["error_node"] = *node.error_node;
  if (node.compensation) out["compensation"] = *node.compensation;
  if (!node.conditions.empty()) out["when"] = node.conditions;
  if (!node.gates.empty()) out["gates"] = node.gates;
  if (!node.approvers.empty()) out["approvers"] = node.approvers;
  return out;
}

json to_json(const FlowReason& reason) {
  json evidence = json::array();
  for (const std::string& line : reason.evidence) evidence.push_back(to_utf8(line));
  return {{"node", to_utf8(reason.node)},
          {"cause", reason.cause},
          {"reason", to_utf8(reason.reason)},
          {"evidence", std::move(evidence)},
          {"next", to_utf8(reason.next_action)}};
}

json to_json(const TimelineRow& row) {
  return {{"at_ms", row.at_ms}, {"revision", row.revision}, {"node", to_utf8(row.node)}, {"what", to_utf8(row.text)}};
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
           {"checkpoint_at", view.checkpoint_revision},
           {"events_waiting", view.events_waiting},
           {"now_ms", view.now_ms},
           {"nodes", json::array()},
           {"anomalies", json::array()}};
  set_if_present(out, "context_id", view.record.context_id);
  if (view.hold_request) out["said"] = answer_to_json(*view.hold_request);
  set_if_present(out, "error", view.record.error);
  set_if_present(out, "parent", view.record.parent);
  if (auto inputs = parse_flow_inputs(view.record); !inputs.is_null()) out["inputs"] = std::move(inputs);
  set_if_present(out, "created_at", view.record.created_at);
  set_if_present(out, "started_ms", view.record.started_ms);
  set_if_present(out, "ended_ms", view.record.ended_ms);
  for (const NodeView& node : view.nodes) out["nodes"].push_back(to_json(node));
  for (const std::string& line : view.anomalies) out["anomalies"].push_back(to_utf8(line));
  out["planned"] = list_names(view, view.planned);
  out["visible"] = list_names(view, view.visible);
  out["claimed"] = list_names(view, view.claimed);
  out["expired"] = list_names(view, view.expired);
  out["waiting"] = list_names(view, view.waiting);
  out["manual"] = list_names(view, view.manual);
  out["unapplied"] = list_names(view, view.unapplied);
  out["applied"] = list_names(view, view.applied);
  out["terminal"] = has_ended(view);
  return out;
}

// The timeline of a run: the facts of its journal, and between them the attempts from the journals of its jobs.

namespace {

using nlohmann::json;

constexpr std::size_t kMaxShownBytes = 300;           // bytes of one value
constexpr std::size_t kMaxJobsWithAttempts = 500;     // jobs with displayed attempts
constexpr std::size_t kMaxJobsPerTimelineRead = 200;  // jobs whose state is read by one call

std::string format_value(const json& value) {
  std::string text;
  if (value.is_array()) {
    for (const json& item : value) text += (text.empty() ? "" : ", ") + format_value(item);
  } else {
    text = value.is_string() ? value.get<std::string>() : dump_json(value);
  }
  if (text.size() > kMaxShownBytes)
    text.replace(whole_characters(text, kMaxShownBytes).size(), std::string::npos, "...");
  return text;
}

// Returns the text for a dispatched node. `reason` is the field `as` of the fact.
std::string format_start(const std::string& reason) {
  static constexpr std::pair<std::string_view, std::string_view> kStartTexts[] = {
      {"queued", "queued"},        {"approval", "waits for approval"}, {"pause", "waits to be resumed"},
      {"wait", "waits"},           {"flow", "starts a flow"},          {"log", "writes its line"},
      {"each", "begins its parts"}};
  for (const auto& [word, text] : kStartTexts) {
    if (reason == word) return std::string(text);
  }
  return "dispatched as " + reason;
}

std::string format_kind(const RunFact& fact, const json& fields) {
  const auto text = [&](const char* name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string() : format_value(*found);
  };
  if (fact.kind == "control" && fields.contains("verb")) return past_tense(text("verb"));
  if (fact.kind == "node_dispatched" && fields.contains("as")) return format_start(text("as"));
  if (fact.kind == "node_gated") return "waits for";
  if (fact.kind == "ended" && fields.contains("status")) {
    const auto status = parse<FlowStatus>(text("status"));
    return "ended: " + (status ? to_display_state(*status, text("detail")) : text("status"));
  }
  std::string kind = fact.kind.empty() ? "?" : fact.kind.substr(0, kMaxShownBytes);
  if (fact.node && kind.starts_with("node_")) kind.erase(0, 5);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  return kind;
}

// Formats a fact: "approved ok by 12: ship it", "failed timeout: ...". The payload of a signal is not shown.
std::string format_fact(const RunFact& fact) {
  const auto fields = parse_json(fact.data_json.empty() ? "{}" : fact.data_json);
  if (!fields || !fields->is_object()) return format_kind(fact, json::object()) + " (its content cannot be read)";
  std::string text = format_kind(fact, *fields);
  static constexpr std::pair<const char*, const char*> kShownFields[] = {
      {"target", " "},       {"detail", " "}, {"outcome", " as "}, {"trigger", " by "}, {"gate", " "},
      {"gates", " "},        {"asks", ": "},  {"flow", " flow "},  {"actor", " by "},   {"by", " by "},
      {"failed", " after "}, {"error", ": "}, {"comment", ": "}};
  for (const auto& [key, prefix] : kShownFields) {
    const auto found = fields->find(key);
    if (found == fields->end() || found->is_null() || *found == "" || *found == 0) continue;
    if (fact.kind == "ended" && std::string_view(key) == "detail") continue;
    text += prefix + format_value(*found);
  }
  return text;
}

std::string get_short_field(const Fact& fact, std::string_view name) {
  return std::string(field_of(fact.fields, name).substr(0, kMaxShownBytes));
}

// Adds a row for each attempt of a job that did not end the job. The journal of the flow reports the end.
class AttemptRows {
 public:
  explicit AttemptRows(std::string node) : node_(std::move(node)) {}

  void add_fact(const Fact& fact, std::vector<TimelineRow>& rows) {
    if (fact.kind == kFactKindClaimed) {
      attempt_ = get_short_field(fact, kFactAttemptField);
      runner_ = get_short_field(fact, kFactRunnerField);
      return;
    }
    std::string text;
    if (fact.kind == kFactKindRetry) {
      std::uint64_t due = 0;
      const bool is_later = parse_u64(get_short_field(fact, kFactDueField), due) && due > fact.at_ms;
      text = fmt::format("attempt {} failed: {}{}; the next one is due {}", attempt_,
                         get_short_field(fact, kFactDetailField), runner_suffix(),
                         is_later ? "in " + format_duration(due - fact.at_ms) : "at once");
    } else if (fact.kind == kFactKindExpired) {
      text = fmt::format("attempt {} was lost{}: its lease ran out", attempt_, runner_suffix());
    } else if (fact.kind == kFactKindReleased) {
      const std::string reason = get_short_field(fact, kFactReasonField);
      text =
          fmt::format("attempt {} was released{}{}{}", attempt_, runner_suffix(), reason.empty() ? "" : ": ", reason);
    } else {
      return;
    }
    rows.push_back({fact.at_ms, 0, node_, std::move(text)});
  }

 private:
  std::string runner_suffix() const { return runner_.empty() ? "" : ", runner " + runner_; }

  std::string node_, attempt_ = "?", runner_;
};

Result<void> add_attempt_rows(Store& store, Id context, const std::string& node, const ClaimView& claim,
                              std::vector<TimelineRow>& rows) {
  AttemptRows attempts(node);
  MJ_TRY(facts, read_latest_facts(store, context, claim));
  for (const Fact& fact : facts) attempts.add_fact(fact, rows);
  return {};
}

// Reads the attempts of the jobs of a flow. The rows are sorted by time.
Result<std::vector<TimelineRow>> read_attempt_rows(Store& store, Id context, const LoadedFlow& loaded_flow) {
  std::vector<TimelineRow> rows;
  std::vector<std::string> keys, names;
  const Flow& record = loaded_flow.record;
  std::size_t job_count = 0;
  const auto read_batch = [&]() -> Result<void> {
    MJ_TRY(states, store.job_states(context, keys, false));
    for (std::size_t i = 0; i < std::min(states.size(), names.size()); ++i) {
      const ClaimView& claim = states[i].claim;
      // Only a job that was claimed again, or that is no longer claimed and has not ended, has an attempt to be shown.
      const bool has_failed_attempt =
          claim.epoch > 1 || (claim.epoch == 1 && claim.state != kJobStateLive && claim.state != kJobStateEnded);
      if (!has_failed_attempt || claim.queue.empty() || job_count++ >= kMaxJobsWithAttempts) continue;
      MJ_CHECK(add_attempt_rows(store, context, names[i], claim, rows));
    }
    keys.clear();
    names.clear();
    return {};
  };
  for (std::uint32_t i = 0; loaded_flow.plan && i < loaded_flow.plan->nodes.size() && i < record.jobs.size(); ++i) {
    if (loaded_flow.plan->nodes[i].kind != NodeKind::job || loaded_flow.state.nodes.at(i).runs == 0) continue;
    keys.push_back(job_key(record.caller_id, record.jobs[i]));
    names.push_back(loaded_flow.plan->nodes[i].name);
    if (keys.size() == kMaxJobsPerTimelineRead) MJ_CHECK(read_batch());
  }
  if (!keys.empty()) MJ_CHECK(read_batch());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.at_ms < b.at_ms; });
  return rows;
}

}  // namespace

Result<std::vector<TimelineRow>> flow_timeline(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max) {
  MJ_TRY(loaded_flow, load_flow(flows, context, flow));
  std::vector<std::string> anomalies;
  MJ_TRY(facts, read_facts(flows, context, flow, max, anomalies));
  MJ_TRY(attempts, read_attempt_rows(store, context, loaded_flow));
  std::vector<TimelineRow> rows;
  auto attempt = attempts.begin();
  for (const RunFact& fact : facts) {
    for (; attempt != attempts.end() && attempt->at_ms < fact.at_ms; ++attempt) rows.push_back(std::move(*attempt));
    TimelineRow row{fact.at_ms, fact.revision, "", format_fact(fact)};
    if (fact.node) {
      const bool is_in_plan = loaded_flow.plan && *fact.node < loaded_flow.plan->nodes.size();
      row.node = is_in_plan ? loaded_flow.plan->nodes[*fact.node].name : fmt::format("node {}", *fact.node);
    }
    rows.push_back(std::move(row));
  }
  std::move(attempt, attempts.end(), std::back_inserter(rows));
  for (const std::string& line : anomalies) rows.push_back({0, 0, "", "anomaly: " + line});
  if (rows.size() > max) rows.resize(max);
  return rows;
}

namespace {

constexpr std::size_t kMaxLogPartsPerRead = 256;  // parts read in one call

bool may_have_log(const NodeView& node) {
  const bool is_skipped = node.status == NodeStatus::cancelled && node.started_ms == 0 && node.attempt == 0;
  return node.status >= NodeStatus::ready && !is_skipped;
}

}  // namespace

// Adds the lines of one page. Returns true if there may be more lines now.
Result<bool> FlowLogReader::read(const FlowView& view, const NodeView& node, LogPosition& position,
                                 std::vector<FlowLogLine>& out) {
  const bool is_settled = node.status >= NodeStatus::completed;
  if (node.kind == "log") {
    position.is_fully_read = is_settled;
    if (node.status != NodeStatus::completed) return false;
    const std::uint64_t at_ms = node.ended_ms != 0 ? node.ended_ms : node.since_ms;
    out.push_back({node.name, node.job_key, {at_ms, 1, LogStream::system, node.text}});
    return false;
  }
  MJ_TRY(page, logs_.read(store_, context_, node.job_key, position.last_seq, kMaxLogPartsPerRead, 0));
  const auto add_line = [&](const Log& line) { out.push_back({node.name, node.job_key, line}); };
  for (const Log& part : page.lines) {
    position.splitter.add_part(part, add_line);
    position.last_seq = std::max(position.last_seq, part.seq);
  }
  if (!page.lines.empty() && !page.ended) return true;
  // A failed job can run again and continue its log while its flow is active.
  if (page.ended || is_settled) position.splitter.flush(add_line);
  position.is_fully_read = is_settled && has_ended(view);
  return false;
}

bool FlowLogReader::is_read(const NodeView& node) const {
  const bool writes_log = node.kind.empty() || node.kind == "job" || node.kind == "log";
  const bool is_selected = nodes_.empty() || std::find(nodes_.begin(), nodes_.end(), node.name) != nodes_.end();
  return writes_log && is_selected && !node.job_key.empty() && may_have_log(node);
}

Result<void> FlowLogReader::skip_to_last_lines(const FlowView& view, std::size_t lines) {
  for (const NodeView& node : view.nodes) {
    if (!is_read(node) || node.kind == "log") continue;
    LogPosition& position = positions_[node.name];
    auto start_seq = JobLogReader::find_last_lines(store_, context_, node.job_key, position.last_seq, lines);
    if (!start_seq && start_seq.error().code == Code::not_found) continue;  // another client has deleted the record
    MJ_CHECK(start_seq);
    position.last_seq = *start_seq;
  }
  return {};
}

Result<std::vector<FlowLogLine>> FlowLogReader::read_next(const FlowView& view, std::size_t max) {
  std::vector<FlowLogLine> out;
  for (const auto& layer : find_layers(view)) {
    for (const std::uint32_t index : layer) {
      const NodeView& node = view.nodes[index];
      LogPosition& position = positions_[node.name];
      if (!is_read(node) || position.is_fully_read) continue;
      for (bool has_lines = true; has_lines;) {
        auto has_more = read(view, node, position, out);
        if (!has_more && has_more.error().code == Code::not_found) break;  // another client has deleted the record
        MJ_CHECK(has_more);
        if (out.size() >= max) return out;
        has_lines = *has_more;
      }
    }
  }
  return out;
}

}  // namespace mycojobs
