#include "inspect/flow_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "inspect/draw_flow.h"
#include "inspect/job_view.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr auto kWords = std::to_array<FlowStateText>({
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

constexpr std::pair<std::string_view, std::string_view> kDone[] = {
    {"pause", "paused"},     {"resume", "resumed"},   {"approve", "approved"}, {"reject", "rejected"},
    {"signal", "signalled"}, {"cancel", "cancelled"}, {"retry", "retried"}};

}  // namespace

std::vector<FlowStateText> flow_words() { return {kWords.begin(), kWords.end()}; }

std::string flow_word(FlowStatus status, std::string_view detail) {
  const auto* known = std::find_if(kWords.begin(), kWords.end(), [&](const FlowStateText& row) {
    return row.status == status && row.word == detail;
  });
  if (known != kWords.end()) return std::string(known->word);
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

bool is_under_way(std::string_view word) {
  return word == "started" || word == "idle" || word == "running" || word == "waiting";
}

std::string past_tense(std::string_view verb) {
  for (const auto& [word, past] : kDone) {
    if (verb == word) return std::string(past);
  }
  return std::string(verb);
}

namespace {

void note(std::vector<std::string>& anomalies, std::string line) {
  if (anomalies.size() < kMaxAnomalies) anomalies.push_back(std::move(line));
}

Result<void> find_plan(FlowStore& flows, Id context, FlowFactReader& out) {
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
  auto plan = plan_of_text(*text, hash);
  if (plan) {
    out.plan = std::move(*plan);
  } else {
    out.plan_problem = plan.error().message;
  }
  return {};
}

// Folds the facts up to the first read. The journal may grow in the meantime; later facts belong to the next read.
Result<void> fold_all(FlowStore& flows, Id context, FlowFactReader& out, FlowReadResult first) {
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
    for (std::string& line : page.anomalies) note(out.anomalies, std::move(line));
    for (const RunFact& fact : page.facts) fold(*out.plan, out.state, fact);
    if (!page.more || page.facts.empty()) break;
    const std::uint64_t after = page.facts.back().revision;
    MJ_TRY(next, flows.read(context, out.record.id, after));
    page = std::move(next);
  }
  for (const std::string& line : out.state.anomalies) note(out.anomalies, line);
  return {};
}

}  // namespace

Result<FlowFactReader> read_flow(FlowStore& flows, Id context, Id flow) {
  MJ_TRY(first, flows.read(context, flow, std::nullopt));
  if (first.record.empty()) {
    return fail(Code::not_found,
                fmt::format("flow {} is unknown in context {}; `mycojobs flow list` shows all flows", flow, context));
  }
  FlowFactReader out;
  auto decoded = decode<Flow>(first.record);
  out.record = std::move(decoded.record);
  for (const FieldProblem& problem : decoded.problems) note(out.anomalies, "record: " + problem.message);
  if (out.record.id != flow) {
    note(out.anomalies, fmt::format("record: its id is {}, but its key has {}", out.record.id, flow));
    out.record.id = flow;
  }
  out.revision = first.revision;
  out.checkpoint_at = first.checkpoint_at;
  out.now_ms = first.now_ms;
  out.events = first.events;
  MJ_CHECK(find_plan(flows, context, out));
  if (out.plan) {
    MJ_CHECK(fold_all(flows, context, out, std::move(first)));
    return out;
  }
  note(out.anomalies, "definition: " + out.plan_problem);
  for (std::string& line : first.anomalies) note(out.anomalies, std::move(line));
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
    for (std::string& line : page.anomalies) note(anomalies, std::move(line));
    for (RunFact& fact : page.facts) {
      if (facts.size() < max) facts.push_back(std::move(fact));
    }
    if (!page.more || page.facts.empty()) break;
    // Another client may have written times and revisions. The loop continues only while the revisions increase.
    if (facts.empty() || facts.back().revision <= after) break;
    after = facts.back().revision;
  }
  return facts;
}

// Reads a flow once: the journal, the state of the active jobs, and the answers of people.

namespace {

constexpr std::size_t kFacts = 20000;  // a longer journal is not read to its end

// A control fact as an answer, with its subject. No value: not a valid control.
struct Control {
  FlowAnswer answer;
  std::string verb, target;
};
std::optional<Control> control_of(const RunFact& fact) {
  if (fact.kind != "control" || fact.node) return std::nullopt;
  const auto more = parse_json(fact.more.empty() ? "{}" : fact.more);
  if (!more || !more->is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto found = more->find(name);
    return found != more->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Control control{{"", 0, text("comment"), fact.at_ms}, text("verb"), text("target")};
  control.answer.what = past_tense(control.verb);
  const auto actor = more->find("actor");
  if (actor != more->end() && actor->is_number_unsigned() && actor->get<std::uint64_t>() <= UINT32_MAX)
    control.answer.actor = actor->get<Id>();
  return control;
}

bool asks_people(const FlowPlan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.kind == NodeKind::approval || node.kind == NodeKind::pause || !node.gates.empty();
  });
}

// Maps by name, since a view leaves out nodes that the run does not have yet.
using PlanNodesByName = std::map<std::string_view, const PlanNode*>;
PlanNodesByName by_name(const FlowPlan& plan) {
  PlanNodesByName all;
  for (const PlanNode& node : plan.nodes) all.emplace(node.name, &node);
  return all;
}

void take_answer(const PlanNodesByName& plan, const Control& control, FlowView& view) {
  if (control.target.empty()) {
    const std::string& wanted = view.detail == "cancelled" ? "cancelling" : view.detail;
    const bool holds =
        (wanted == "paused" && control.verb == "pause") || (wanted == "cancelling" && control.verb == "cancel");
    if (holds) view.held_by = control.answer;
    return;
  }
  const std::string gate = (control.verb == "signal" ? "signal:" : "approval:") + control.target;
  for (NodeView& node : view.nodes) {
    const auto planned = plan.find(node.name);
    if (planned == plan.end()) continue;
    const auto& gates = planned->second->gates;
    const bool named = control.verb != "signal" && node.name == control.target;
    if (named || std::find(gates.begin(), gates.end(), gate) != gates.end()) node.answers.push_back(control.answer);
  }
}

}  // namespace

std::string describe(const FlowAnswer& answer) {
  return fmt::format("{} by {}{}{}", answer.what, answer.actor, answer.comment.empty() ? "" : ": ", answer.comment);
}

// Reads the journal only if it can have answers, since a journal can be long.
Result<void> read_control_answers(FlowStore& flows, Id context, const FlowPlan& plan, FlowView& view) {
  const bool held = view.detail == "paused" || view.detail == "cancelling" || view.detail == "cancelled";
  if (!held && !asks_people(plan)) return {};
  std::vector<std::string> seen_before;
  MJ_TRY(facts, read_facts(flows, context, view.record.id, kFacts, seen_before));
  const PlanNodesByName planned = by_name(plan);
  for (const RunFact& fact : facts) {
    if (const auto control = control_of(fact)) take_answer(planned, *control, view);
  }
  return {};
}

// Reads a flow once: the journal, and the state of the active jobs.

namespace {

constexpr std::size_t kViewChunk = 200;  // places read in one call
constexpr std::size_t kSettled = 500;    // settled nodes for which the job is read for its times

std::string field(const JobStoreState& job, std::string_view name) {
  for (const auto& [key, value] : job.record) {
    if (key == name) return value;
  }
  return "";
}

std::uint64_t number(const JobStoreState& job, std::string_view name) {
  std::uint64_t value = 0;
  return parse_u64(field(job, name), value) ? value : 0;
}

NodeView node_of_plan(const PlanNode& planned, std::uint32_t index) {
  NodeView node;
  node.index = index;
  node.name = planned.name;
  node.kind = to_string(planned.kind);
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

// Without a definition, the list of nodes comes from the record.
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

// Keeps the nodes in `there` and renumbers them.
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

class FlowViewBuilder {
 public:
  FlowViewBuilder(Store& store, Id context, FlowView& view) : store_(store), context_(context), view_(view) {}

  Result<void> lay_over_jobs(std::size_t max_jobs) {
    std::vector<std::uint32_t> chosen, settled;
    for (const NodeView& node : view_.nodes) {
      if (node.job_key.empty()) continue;
      const bool has_started = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
      if (has_started && chosen.size() < max_jobs) chosen.push_back(node.index);
      if (node.status >= NodeStatus::completed && node.detail != "skipped" && settled.size() < kSettled)
        settled.push_back(node.index);
    }
    settled.resize(std::min(settled.size(), max_jobs - chosen.size()));
    chosen.insert(chosen.end(), settled.begin(), settled.end());
    for (std::size_t at = 0; at < chosen.size(); at += kViewChunk) {
      const std::size_t count = std::min(kViewChunk, chosen.size() - at);
      std::vector<std::string> keys;
      for (std::size_t i = 0; i < count; ++i) keys.push_back(view_.nodes[chosen[at + i]].job_key);
      MJ_TRY(places, store_.job_states(context_, keys, false));
      for (std::size_t i = 0; i < std::min(count, places.size()); ++i) lay_over(view_.nodes[chosen[at + i]], places[i]);
    }
    return {};
  }

 private:
  void note(std::string line) {
    if (view_.anomalies.size() < kMaxAnomalies) view_.anomalies.push_back(std::move(line));
  }
  void lay_over(NodeView& node, const JobStoreState& job) {
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
    if (node.kind != "job" && !node.kind.empty()) return;  // the flow executes this node itself
    if (state == "live") {
      live(node, job);
    } else if (state == "planned") {
      note(fmt::format("node {}: the journal says dispatched, and its job {} is in no queue", node.name, node.job_key));
    } else if (!state.empty()) {
      waits(node, job);
    }
  }
  void live(NodeView& node, const JobStoreState& job) {
    node.status = NodeStatus::running;
    node.detail = job.claim.cancel ? "cancelling" : field(job, "detail");
    node.runner = job.claim.runner;
    node.until_ms = job.claim.until_ms;
    (job.claim.until_ms < view_.now_ms ? view_.expired : view_.claimed).push_back(node.index);
  }
  // States queued, delayed, waiting, prerequisites, held.
  void waits(NodeView& node, const JobStoreState& job) {
    const std::string& state = job.claim.state;
    node.started_ms = 0;
    node.detail = state;
    if (state == "delayed") {
      node.status = NodeStatus::ready;
      const std::string detail = field(job, "detail");
      node.detail = detail == "retry_wait" || detail == "quota" ? detail : "delayed";
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

// The state of its jobs is more precise than the journal.
std::string detail_of(const FlowView& view, const RunState& state, const Flow& record) {
  const bool has_started = state.status != FlowStatus::dispatched;
  std::string word = flow_word(state.status, has_started ? state.detail : record.detail);
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
  const RunState state = initial_state(plan);
  std::vector<bool> there(view.nodes.size());
  for (std::uint32_t i = 0; i < there.size(); ++i) there[i] = !has_not_started(plan, state, i);
  keep_only(view, there);
  for (const NodeView& node : view.nodes) view.planned.push_back(node.index);
  return view;
}

Result<FlowView> inspect_flow(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max_jobs) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  return view_of(std::move(reading), flows, store, context, max_jobs);
}

Result<std::string> flow_state_text(FlowStore& flows, Store& store, Id context, const Flow& flow) {
  std::string word = flow_word(flow.status, flow.detail);
  if (word != "running") return word;
  auto view = inspect_flow(flows, store, context, flow.id);
  if (view) return std::move(view->detail);
  if (view.error().code == Code::not_found) return word;  // deleted in the meantime
  return tl::unexpected<Error>(std::move(view).error());
}

Result<FlowView> view_of(FlowFactReader reading, FlowStore& flows, Store& store, Id context, std::size_t max_jobs) {
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
      there[i] = i >= reading.state.nodes.size() || !has_not_started(*reading.plan, reading.state, i);
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
  MJ_CHECK(FlowViewBuilder(store, context, view).lay_over_jobs(max_jobs));
  count(view);
  if (view.has_plan) {
    if (reading.state.started_ms > 0) view.record.started_ms = reading.state.started_ms;
    if (reading.state.ended_ms > 0) view.record.ended_ms = reading.state.ended_ms;
    if (!reading.state.error.empty()) view.record.error = reading.state.error;
  }
  view.status = to_string(reading.state.status);
  view.detail = detail_of(view, reading.state, view.record);
  if (view.has_plan) MJ_CHECK(read_control_answers(flows, context, *reading.plan, view));
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
  json out{{"index", node.index},
           {"name", to_utf8(node.name)},
           {"node_status", to_string(node.status)},
           {"needs", node.needs}};
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
  if (view.held_by) out["said"] = json_of(*view.held_by);
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

// The timeline of a run: the facts of its journal, and between them the attempts from the journals of its jobs.

namespace {

using nlohmann::json;

constexpr std::size_t kMaxShownBytes = 300;  // bytes of one value
constexpr std::size_t kJobs = 500;           // jobs with displayed attempts
constexpr std::size_t kChunk = 200;          // places read in one call

std::string text_of(const json& value) {
  std::string text;
  if (value.is_array()) {
    for (const json& item : value) text += (text.empty() ? "" : ", ") + text_of(item);
  } else {
    text = value.is_string() ? value.get<std::string>() : dump_json(value);
  }
  if (text.size() > kMaxShownBytes)
    text.replace(whole_characters(text, kMaxShownBytes).size(), std::string::npos, "...");
  return text;
}

// Returns the verb for a node of this kind that has started.
std::string has_started(const std::string& as) {
  static constexpr std::pair<std::string_view, std::string_view> kStartedFields[] = {
      {"queued", "queued"},        {"approval", "waits for approval"}, {"pause", "waits to be resumed"},
      {"wait", "waits"},           {"flow", "starts a flow"},          {"log", "writes its line"},
      {"each", "begins its parts"}};
  for (const auto& [word, text] : kStartedFields) {
    if (as == word) return std::string(text);
  }
  return "dispatched as " + as;
}

std::string kind_of(const RunFact& fact, const json& more) {
  const auto text = [&](const char* name) {
    const auto found = more.find(name);
    return found == more.end() ? std::string() : text_of(*found);
  };
  if (fact.kind == "control" && more.contains("verb")) return past_tense(text("verb"));
  if (fact.kind == "node_dispatched" && more.contains("as")) return has_started(text("as"));
  if (fact.kind == "node_gated") return "waits for";
  if (fact.kind == "ended" && more.contains("status")) {
    const auto status = parse<FlowStatus>(text("status"));
    return "ended: " + (status ? flow_word(*status, text("detail")) : text("status"));
  }
  std::string kind = fact.kind.empty() ? "?" : fact.kind.substr(0, kMaxShownBytes);
  if (fact.node && kind.starts_with("node_")) kind.erase(0, 5);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  return kind;
}

// For example "approved ok by 12: ship it", "failed timeout: ...". The payload of a signal is not shown.
std::string what_of(const RunFact& fact) {
  const auto more = parse_json(fact.more.empty() ? "{}" : fact.more);
  if (!more || !more->is_object()) return kind_of(fact, json::object()) + " (its content cannot be read)";
  std::string what = kind_of(fact, *more);
  static constexpr std::pair<const char*, const char*> kShown[] = {
      {"target", " "},       {"detail", " "}, {"outcome", " as "}, {"trigger", " by "}, {"gate", " "},
      {"gates", " "},        {"asks", ": "},  {"flow", " flow "},  {"actor", " by "},   {"by", " by "},
      {"failed", " after "}, {"error", ": "}, {"comment", ": "}};
  for (const auto& [key, before] : kShown) {
    const auto found = more->find(key);
    if (found == more->end() || found->is_null() || *found == "" || *found == 0) continue;
    if (fact.kind == "ended" && std::string_view(key) == "detail") continue;
    what += before + text_of(*found);
  }
  return what;
}

std::string field(const Fact& fact, std::string_view name) {
  for (const auto& [key, value] : fact.more) {
    if (key == name) return value.substr(0, kMaxShownBytes);
  }
  return "";
}

// Collects the attempts of a job that did not end it. The flow reports the end itself.
class Attempts {
 public:
  explicit Attempts(std::string node) : node_(std::move(node)) {}

  void take(const Fact& fact, std::vector<TimelineRow>& rows) {
    if (fact.kind == "claimed") {
      attempt_ = field(fact, "a");
      runner_ = field(fact, "r");
      return;
    }
    std::string what;
    if (fact.kind == "retry") {
      std::uint64_t due = 0;
      const bool later = parse_u64(field(fact, "due"), due) && due > fact.at_ms;
      what = fmt::format("attempt {} failed: {}{}; the next one is due {}", attempt_, field(fact, "detail"),
                         on_runner(), later ? "in " + span_text(due - fact.at_ms) : "at once");
    } else if (fact.kind == "expired") {
      what = fmt::format("attempt {} was lost{}: its lease ran out", attempt_, on_runner());
    } else if (fact.kind == "released") {
      const std::string why = field(fact, "why");
      what = fmt::format("attempt {} was released{}{}{}", attempt_, on_runner(), why.empty() ? "" : ": ", why);
    } else {
      return;
    }
    rows.push_back({fact.at_ms, 0, node_, std::move(what)});
  }

 private:
  std::string on_runner() const { return runner_.empty() ? "" : ", runner " + runner_; }

  std::string node_, attempt_ = "?", runner_;
};

Result<void> read_attempts(Store& store, Id context, const std::string& node, const ClaimView& claim,
                           std::vector<TimelineRow>& rows) {
  Attempts attempts(node);
  MJ_TRY(facts, latest_facts(store, context, claim));
  for (const Fact& fact : facts) attempts.take(fact, rows);
  return {};
}

// Sorted by time.
Result<std::vector<TimelineRow>> rows_of_attempts(Store& store, Id context, const FlowFactReader& reading) {
  std::vector<TimelineRow> rows;
  std::vector<std::string> keys, names;
  const Flow& record = reading.record;
  std::size_t jobs = 0;
  const auto look = [&]() -> Result<void> {
    MJ_TRY(places, store.job_states(context, keys, false));
    for (std::size_t i = 0; i < std::min(places.size(), names.size()); ++i) {
      const ClaimView& claim = places[i].claim;
      // Only a job that was claimed more than once, or that failed and waits, has an attempt that did not end it.
      const bool again = claim.epoch > 1 || (claim.epoch == 1 && claim.state != "live" && claim.state != "ended");
      if (!again || claim.queue.empty() || jobs++ >= kJobs) continue;
      MJ_CHECK(read_attempts(store, context, names[i], claim, rows));
    }
    keys.clear();
    names.clear();
    return {};
  };
  for (std::uint32_t i = 0; reading.plan && i < reading.plan->nodes.size() && i < record.jobs.size(); ++i) {
    if (reading.plan->nodes[i].kind != NodeKind::job || reading.state.nodes.at(i).runs == 0) continue;
    keys.push_back(job_key(record.caller_id, record.jobs[i]));
    names.push_back(reading.plan->nodes[i].name);
    if (keys.size() == kChunk) MJ_CHECK(look());
  }
  if (!keys.empty()) MJ_CHECK(look());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.at_ms < b.at_ms; });
  return rows;
}

}  // namespace

Result<std::vector<TimelineRow>> flow_timeline(FlowStore& flows, Store& store, Id context, Id flow, std::size_t max) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  std::vector<std::string> anomalies;
  MJ_TRY(facts, read_facts(flows, context, flow, max, anomalies));
  MJ_TRY(attempts, rows_of_attempts(store, context, reading));
  std::vector<TimelineRow> rows;
  auto next = attempts.begin();
  for (const RunFact& fact : facts) {
    for (; next != attempts.end() && next->at_ms < fact.at_ms; ++next) rows.push_back(std::move(*next));
    TimelineRow row{fact.at_ms, fact.revision, "", what_of(fact)};
    if (fact.node) {
      const bool known = reading.plan && *fact.node < reading.plan->nodes.size();
      row.node = known ? reading.plan->nodes[*fact.node].name : fmt::format("node {}", *fact.node);
    }
    rows.push_back(std::move(row));
  }
  std::move(next, attempts.end(), std::back_inserter(rows));
  for (const std::string& line : anomalies) rows.push_back({0, 0, "", "anomaly: " + line});
  if (rows.size() > max) rows.resize(max);
  return rows;
}

namespace {

constexpr std::size_t kLogPage = 256;  // parts read in one call

bool has_started_already(const NodeView& node) {
  const bool skipped = node.status == NodeStatus::cancelled && node.started_ms == 0 && node.attempt == 0;
  return node.status >= NodeStatus::ready && !skipped;
}

}  // namespace

// Returns true if there may be more lines now.
Result<bool> FlowLogs::read(const FlowView& view, const NodeView& node, Place& place, std::vector<FlowLogLine>& out) {
  const bool settled = node.status >= NodeStatus::completed;
  if (node.kind == "log") {
    place.over = settled;
    if (node.status != NodeStatus::completed) return false;
    const std::uint64_t at_ms = node.ended_ms != 0 ? node.ended_ms : node.since_ms;
    out.push_back({node.name, node.job_key, {at_ms, 1, LogStream::system, node.text}});
    return false;
  }
  MJ_TRY(page, store_.logs(context_, node.job_key, place.after, kLogPage, 0));
  const auto tell = [&](const Log& line) { out.push_back({node.name, node.job_key, line}); };
  for (const Log& piece : page.lines) {
    place.lines.take(piece, tell);
    place.after = std::max(place.after, piece.seq);
  }
  if (!page.lines.empty() && !page.ended) return true;
  // A failed job can run again and continue its log while its flow is active.
  const bool over = view.status == "finished" || view.status == "error";
  if (page.ended || settled) place.lines.finish(tell);
  place.over = settled && over;
  return false;
}

Result<std::vector<FlowLogLine>> FlowLogs::next(const FlowView& view, std::size_t max) {
  std::vector<FlowLogLine> out;
  for (const auto& layer : flow_layers(view)) {
    for (const std::uint32_t index : layer) {
      const NodeView& node = view.nodes[index];
      const bool writes = node.kind.empty() || node.kind == "job" || node.kind == "log";
      Place& place = elements_[node.name];
      if (!writes || node.job_key.empty() || place.over || !has_started_already(node)) continue;
      for (bool more = true; more;) {
        auto again = read(view, node, place, out);
        if (!again && again.error().code == Code::not_found) break;  // another client has deleted its record
        MJ_CHECK(again);
        if (out.size() >= max) return out;
        more = *again;
      }
    }
  }
  return out;
}

}  // namespace mycojobs
