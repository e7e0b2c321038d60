#include "flows/flow_state.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/parse.h"
#include "base/sha256.h"
#include "flows/flow_fold.h"
#include "flows/flow_plan_reader.h"
#include "jobs/state_machines.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxAnomalies = 100;

using F = FlowFold;
constexpr std::array kRows = std::to_array<FlowFoldHandler>({
    {{"started", "trigger, actor, deadline", "the run began; deadline: when its time will be over, ms"}, &F::started},
    {{"control", "verb, target, actor, comment, key, digest, payload", "a control was requested; its effects follow"},
     &F::control},
    {{"paused", "", "the flow is paused: no node starts until it is resumed"}, &F::paused},
    {{"resumed", "", "the flow is resumed"}, &F::resumed},
    {{"stopping", "outcome, error", "only compensations start; outcome: the future end of the flow"}, &F::stopping},
    {{"retried", "target, deadline", "failed nodes and the nodes that were skipped because of them are reset"},
     &F::retried},
    {{"ended", "status, detail, error", "the flow has ended and changes only after a retry"}, &F::ended},
    {{"node_gated", "gates, until, approvers", "its needs are met; these gates are closed", true}, &F::node_gated},
    {{"gate_opened", "gate", "one of its gates is open", true}, &F::gate_opened},
    {{"node_ready", "when", "all prerequisites are met; when: the conditions that are true", true}, &F::node_ready},
    {{"node_dispatched", "as, until, approvers, asks, when", "it is under way; as: the detail beside the status", true},
     &F::node_dispatched},
    {{"node_expanded", "count, values, bytes", "its elements are known; values: the values that conditions read", true},
     &F::node_expanded},
    {{"child_started", "flow", "its child flow runs", true}, &F::child_started},
    {{"cancel_sent", "", "its job or child was requested to end", true}, &F::cancel_sent},
    {{"node_completed", "detail, error, failed, values, bytes",
      "it has completed; values: the values that conditions read; failed: the detail of an ignored failure", true},
     &F::node_completed},
    {{"node_failed", "detail, error, routed", "it has failed; routed: its error node handles the failure", true},
     &F::node_failed},
    {{"node_unhandled", "", "its error node did not handle its failure", true}, &F::node_unhandled},
    {{"node_cancelled", "detail, error", "it has been settled without an own end", true}, &F::node_cancelled},
    {{"node_retried", "", "it is pending again", true}, &F::node_retried},
    {{"compensating", "by", "its compensation is called", true}, &F::compensating},
});

// Records an anomaly. A journal may hold any bytes, so the text is one printable line of bounded length.
void note(RunState& run, const RunFact& fact, const std::string& what) {
  if (run.anomalies.size() >= kMaxAnomalies) return;
  run.anomalies.push_back("revision " + std::to_string(fact.revision) + ": " + ascii(fact.kind, 60) + ' ' + what);
}

void index_node(const FlowPlan& plan, RunState& run, std::uint32_t i) {
  const NodeState& node = run.nodes[i];
  const PlanNode& planned = plan.nodes[i];
  const bool settled = node.settled != 0;
  const bool called = !planned.on_call || node.status != NodeStatus::pending || node.detail != "on_call";
  if (!settled && !called) run.uncalled.insert(i);
  if (!settled && called) ++run.unsettled;
  run.result_bytes += node.result_bytes;
  if (node.status == NodeStatus::ready) {
    run.ready.insert(i);
    if (is_own(planned.kind)) run.ready_own.insert(i);
  }
  if (node.status == NodeStatus::dispatched) {
    run.in_flight.insert(i);
    if (is_own(planned.kind)) run.waiting.insert(i);
    const bool known = planned.kind == NodeKind::job || (planned.kind == NodeKind::flow && node.child != 0);
    if (run.cancelling && known && !node.compensates && node.detail != "cancelling") run.to_cancel.insert(i);
    if (node.child != 0) run.awaited.emplace(node.child, i);
  }
  if (node.until_ms != 0) run.timers.emplace(node.until_ms, i);
  if (!node.gates.empty()) run.gated.insert(i);
  for (const std::string& gate : node.gates) {
    if (const Id flow = awaited_by(gate)) run.awaited.emplace(flow, i);
  }
  if (node.status == NodeStatus::failed && settled && !node.compensates) run.failures.insert(i);
  if (node.status == NodeStatus::completed && node.detail == "ok" && planned.compensation && !node.compensates &&
      !node.compensated) {
    run.compensable.emplace_back(node.settled, i);
  }
  if (node.status == NodeStatus::pending && node.gates.empty()) {
    const bool no_call = !called && node.callers > 0 && node.callers_open == 0;
    if (planned.on_call ? called || no_call : node.open_needs == 0) run.met.insert(i);
  }
}

// Relations between nodes: open needs and callers.
void index_links(const FlowPlan& plan, RunState& run) {
  std::vector<bool> compensation(plan.nodes.size(), false);
  for (const PlanNode& each : plan.nodes) {
    if (each.compensation) compensation[*each.compensation] = true;
  }
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const PlanNode& planned = plan.nodes[i];
    NodeState& node = run.nodes[i];
    if (node.settled == 0) {
      for (const std::uint32_t dependent : planned.dependents) ++run.nodes[dependent].open_needs;
    }
    // A compensation that fails has a fact, and the next compensation runs: its failure is not routed.
    node.routes =
        planned.on_error == OnError::route && planned.error_node && *planned.error_node != i && !compensation[i];
    if (!node.routes) continue;
    NodeState& error_node = run.nodes[*planned.error_node];
    const bool routed = node.status == NodeStatus::failed && node.settled == 0;
    ++error_node.callers;
    if (node.settled == 0 && !routed) ++error_node.callers_open;
    if (!routed) continue;
    if (error_node.settled == 0) {
      error_node.called_by.push_back(i);
    } else {
      run.to_resolve.insert(i);
    }
  }
}

}  // namespace

const FlowFoldHandler* fold_row(std::string_view kind) {
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const FlowFoldHandler& each) { return each.shape.kind == kind; });
  return row == kRows.end() ? nullptr : row;
}

Id awaited_by(std::string_view gate) {
  std::uint64_t flow = 0;
  const bool ok = gate.substr(0, 5) == "flow:" && parse_u64(gate.substr(5), flow) && flow <= UINT32_MAX;
  return ok ? static_cast<Id>(flow) : 0;
}

void index_run(const FlowPlan& plan, RunState& run) {
  index_links(plan, run);
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) index_node(plan, run, i);
  std::sort(run.compensable.begin(), run.compensable.end());
}

std::string detail_of(const RunState& run) {
  if (run.compensating) return "compensating";
  if (run.cancelling) return "cancelling";
  if (run.stopping) return "stopping";
  if (run.status == FlowStatus::dispatched) return "new";
  return run.paused ? "paused" : "running";
}

bool has_not_started(const FlowPlan& plan, const RunState& run, std::uint32_t node) {
  const auto each = plan.nodes[node].each;
  if (!each) return false;
  return run.nodes[node].detail == "absent" || (plan.nodes[*each].from && run.nodes[*each].settled == 0);
}

Result<std::vector<std::string>> elements_of(const FlowPlan& plan, const RunState& run, std::uint32_t node) {
  const PlanNode& group = plan.nodes[node];
  if (!group.from) return group.elements;
  const std::string what = plan.nodes[group.from->node].name + '.' + group.from->key;
  const TextMap& values = run.nodes[group.from->node].values;
  const auto value = values.find(group.from->key);
  if (value == values.end()) return fail(Code::invalid, what + " is missing: there is no list of elements");
  const auto parsed = parse_exact_json(value->second);
  if (!parsed && is_json(value->second)) return fail(parsed.error(), what);
  auto elements = parsed ? plans::elements_of(*parsed) : std::nullopt;
  if (!elements) return fail(Code::invalid, what + " is " + excerpt(value->second) + ", no list and no map");
  if (elements->size() > group.places) {
    return fail(Code::invalid, what + " has " + std::to_string(elements->size()) + " elements, more than " +
                                   std::to_string(group.places) + ": give the node a larger max (at most " +
                                   std::to_string(kMaxEach) + "), or the list fewer");
  }
  for (std::size_t i = 0; i < elements->size(); ++i) {
    if ((*elements)[i].size() <= kMaxElementBytes) continue;
    return fail(Code::invalid, what + '[' + std::to_string(i) + "] is longer than " + std::to_string(kMaxElementBytes) +
                                   " bytes: pass a reference to the data instead");
  }
  return std::move(*elements);
}

RunState initial_state(const FlowPlan& plan) {
  RunState run;
  run.nodes.resize(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    run.nodes[i].detail = plan.nodes[i].on_call ? "on_call" : "dependencies";
  }
  index_run(plan, run);
  return run;
}

void fold(const FlowPlan& plan, RunState& run, const RunFact& fact) {
  if (fact.revision <= run.revision) {
    return note(run, fact, "follows revision " + std::to_string(run.revision));
  }
  if (fact.revision != run.revision + 1) {
    note(run, fact, "follows revision " + std::to_string(run.revision) + ": the facts in between are lost");
  }
  run.revision = fact.revision;
  if (const auto wrong = FlowFold(plan, run, fact).apply()) note(run, fact, *wrong);
}

std::vector<RunFactShape> run_fact_shapes() {
  std::vector<RunFactShape> shapes;
  for (const auto& row : kRows) shapes.push_back(row.shape);
  return shapes;
}

// Effects of a node's status changes on the lists of the run and on other nodes.

void FlowFold::enter(NodeStatus status, std::string detail) {
  node().status = status;
  node().detail = std::move(detail);
  node().since_ms = fact_.at_ms;
}

void FlowFold::remove_elements(std::uint32_t i) {
  NodeState& at = run_.nodes[i];
  for (auto* places :
       {&run_.ready, &run_.ready_own, &run_.in_flight, &run_.waiting, &run_.gated, &run_.met, &run_.to_cancel}) {
    places->erase(i);
  }
  if (at.until_ms != 0) run_.timers.erase({at.until_ms, i});
  if (at.child != 0) run_.awaited.erase({at.child, i});
  for (const std::string& gate : at.gates) run_.awaited.erase({awaited_by(gate), i});
  at.until_ms = 0;
  at.gates.clear();
}

void FlowFold::resolve_caller(std::uint32_t i) {
  if (!run_.nodes[i].routes) return;
  const std::uint32_t error_node = *planned(i).error_node;
  if (--run_.nodes[error_node].callers_open == 0 && run_.uncalled.contains(error_node)) run_.met.insert(error_node);
}

void FlowFold::settle(std::uint32_t i) {
  NodeState& at = run_.nodes[i];
  remove_elements(i);
  at.settled = fact_.revision;
  if (run_.uncalled.erase(i) == 0) --run_.unsettled;
  run_.to_resolve.erase(i);
  if (planned(i).kind == NodeKind::each && at.detail != "ok") settle_absent(i, 0);
  for (const std::uint32_t dependent : planned(i).dependents) {
    NodeState& other = run_.nodes[dependent];
    const bool last = --other.open_needs == 0;
    if (last && !plan_.nodes[dependent].on_call && other.status == NodeStatus::pending) run_.met.insert(dependent);
  }
  run_.to_resolve.insert(at.called_by.begin(), at.called_by.end());
  at.called_by.clear();
}

// Places without an element settle together with their node of kind each.
void FlowFold::settle_absent(std::uint32_t each, std::uint32_t count) {
  for (std::uint32_t i = each + 1 + count; i <= each + planned(each).places; ++i) {
    NodeState& place = run_.nodes[i];
    if (place.settled != 0 || place.status != NodeStatus::pending) continue;
    place.status = NodeStatus::cancelled;
    place.detail = "absent";
    place.since_ms = fact_.at_ms;
    place.values = {{"$status", place.detail}};
    settle(i);
    resolve_caller(i);
  }
}

void FlowFold::reopen_absent(std::uint32_t each) {
  for (std::uint32_t i = each + 1; i <= each + planned(each).places; ++i) {
    if (run_.nodes[i].settled != 0 && run_.nodes[i].detail == "absent") reopen(i);
  }
}

void FlowFold::reopen(std::uint32_t i) {
  const PlanNode& plan = planned(i);
  NodeState& at = run_.nodes[i];
  for (const std::uint32_t dependent : plan.dependents) {
    if (run_.nodes[dependent].open_needs++ == 0 && !planned(dependent).on_call) run_.met.erase(dependent);
  }
  if (at.routes) {
    ++run_.nodes[*plan.error_node].callers_open;
    if (run_.uncalled.contains(*plan.error_node)) run_.met.erase(*plan.error_node);
  }
  at.status = NodeStatus::pending;
  at.detail = plan.on_call ? "on_call" : "dependencies";
  at.since_ms = fact_.at_ms;
  at.error.clear();
  at.values.clear();
  at.approvers.clear();
  at.settled = 0;
  at.child = 0;
  run_.result_bytes -= at.result_bytes;
  at.result_bytes = 0;
  if (plan.on_call) {
    run_.uncalled.insert(i);
    if (at.callers > 0 && at.callers_open == 0) run_.met.insert(i);
  } else {
    ++run_.unsettled;
    if (at.open_needs == 0) run_.met.insert(i);
  }
}

void FlowFold::call(std::uint32_t on_call_node) {
  if (run_.uncalled.erase(on_call_node) == 0) return;
  ++run_.unsettled;
  run_.nodes[on_call_node].detail = "dependencies";
  run_.nodes[on_call_node].since_ms = fact_.at_ms;
  run_.met.insert(on_call_node);
}

void FlowFold::read_results() {
  const auto found = more_.find("values");
  if (found == more_.end() || !found->is_object()) return;
  for (const auto& item : found->items()) {
    if (item.value().is_string()) node().values[item.key()] = item.value().get<std::string>();
  }
}

// Facts of one node.

namespace {

constexpr std::size_t kMaxErrorBytes = 4096;

std::vector<std::string> texts(const nlohmann::json& more, std::string_view name) {
  std::vector<std::string> out;
  const auto found = more.find(name);
  if (found == more.end() || !found->is_array()) return out;
  for (const auto& each : *found) {
    if (each.is_string() && !each.get_ref<const std::string&>().empty()) out.push_back(each.get<std::string>());
  }
  return out;
}

std::vector<Id> ids(const nlohmann::json& more, std::string_view name) {
  std::vector<Id> out;
  const auto found = more.find(name);
  if (found == more.end() || !found->is_array()) return out;
  for (const auto& each : *found) {
    if (each.is_number_unsigned() && each.get<std::uint64_t>() <= UINT32_MAX) out.push_back(each.get<Id>());
  }
  return out;
}

// Returns the status after the end of a node that is in flight. A dispatched node passes through `running`, which only
// readers see.
std::optional<NodeStatus> end_of(NodeStatus from, NodeEvent event) {
  if (from == NodeStatus::dispatched) from = *advance(from, NodeEvent::start);
  return advance(from, event);
}

}  // namespace

FlowFold::Verdict FlowFold::node_gated() {
  const auto gates = texts(more_, "gates");
  if (!run_.met.contains(index()) || !called() || node().detail == "gate") return reject_fact();
  if (gates.empty()) return "names no gate";
  enter(NodeStatus::pending, "gate");
  run_.met.erase(index());
  run_.gated.insert(index());
  node().gates = gates;
  node().approvers = ids(more_, "approvers");
  node().until_ms = number("until");
  if (node().until_ms != 0) run_.timers.emplace(node().until_ms, index());
  for (const std::string& gate : gates) {
    if (const Id flow = awaited_by(gate)) run_.awaited.emplace(flow, index());
  }
  return std::nullopt;
}

FlowFold::Verdict FlowFold::gate_opened() {
  NodeState& at = node();
  const std::string gate = text("gate");
  const auto found = std::find(at.gates.begin(), at.gates.end(), gate);
  if (found == at.gates.end()) return reject_fact();
  at.gates.erase(std::remove(at.gates.begin(), at.gates.end(), gate), at.gates.end());
  if (const Id flow = awaited_by(gate)) run_.awaited.erase({flow, index()});
  if (!at.gates.empty()) return std::nullopt;
  run_.gated.erase(index());
  if (at.until_ms != 0) run_.timers.erase({at.until_ms, index()});
  at.until_ms = 0;
  run_.met.insert(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_ready() {
  const auto to = advance(node().status, NodeEvent::dependencies_met);
  if (!to || !run_.met.contains(index()) || !called()) return reject_fact();
  run_.met.erase(index());
  enter(*to, "");
  run_.ready.insert(index());
  if (is_own(planned().kind)) run_.ready_own.insert(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_dispatched() {
  NodeState& at = node();
  if (planned().kind == NodeKind::each) return "is for a node that is only expanded";
  if (at.status == NodeStatus::pending && (!run_.met.contains(index()) || !called())) return reject_fact();
  const auto ready = at.status == NodeStatus::pending ? advance(at.status, NodeEvent::dependencies_met) : at.status;
  const auto to = advance(*ready, NodeEvent::dispatch);
  if (!to || run_.status != FlowStatus::started || (run_.stopping && !at.compensates)) return reject_fact();
  const std::string as = text("as");
  if (as != (planned().kind == NodeKind::job ? "queued" : to_string(planned().kind)))
    return "is running as another kind of node";
  remove_elements(index());
  enter(*to, as);
  ++at.runs;
  run_.in_flight.insert(index());
  if (is_own(planned().kind)) {
    run_.waiting.insert(index());
    at.until_ms = number("until");
    if (at.until_ms != 0) run_.timers.emplace(at.until_ms, index());
    at.approvers = ids(more_, "approvers");
  }
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_expanded() {
  NodeState& at = node();
  const std::uint64_t count = number("count");
  const bool open = at.status == NodeStatus::pending ? run_.met.contains(index()) : at.status == NodeStatus::ready;
  if (planned().kind != NodeKind::each || at.settled != 0 || !open || !called()) return reject_fact();
  if (run_.status != FlowStatus::started || run_.stopping) return reject_fact();
  if (count > planned().places) return "has more elements than places";
  enter(NodeStatus::completed, "ok");
  ++at.runs;
  at.error.clear();
  at.values.clear();
  read_results();
  at.values["$status"] = "finished";
  at.result_bytes = number("bytes");
  run_.result_bytes += at.result_bytes;
  settle_absent(index(), static_cast<std::uint32_t>(count));
  settle(index());
  resolve_caller(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::child_started() {
  const std::uint64_t flow = number("flow");
  if (planned().kind != NodeKind::flow || node().status != NodeStatus::dispatched || node().child != 0) {
    return reject_fact();
  }
  if (flow == 0 || flow > UINT32_MAX) return "names no flow";
  node().child = static_cast<Id>(flow);
  run_.awaited.emplace(node().child, index());
  if (run_.cancelling && !node().compensates) run_.to_cancel.insert(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::cancel_sent() {
  if (run_.to_cancel.erase(index()) == 0) return reject_fact();
  enter(node().status, "cancelling");
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_completed() {
  NodeState& at = node();
  const std::string detail = text("detail");
  if (at.settled != 0) return reject_fact();
  if (detail == "handled") {
    if (!run_.to_resolve.contains(index())) return reject_fact();
    enter(*advance(at.status, NodeEvent::handle), detail);
    settle(index());
    return std::nullopt;
  }
  const bool continued = detail == "continued";
  if (!continued && detail != "ok") return "names no detail of a completed node";
  const auto to = end_of(at.status, continued ? NodeEvent::fail : NodeEvent::complete);
  if (!to || !called()) return reject_fact();
  enter(continued ? *advance(*to, NodeEvent::handle) : *to, detail);
  at.error = text("error");
  at.values.clear();
  read_results();
  at.values["$status"] = continued ? "error" : "finished";
  at.result_bytes = number("bytes");
  run_.result_bytes += at.result_bytes;
  settle(index());
  resolve_caller(index());
  if (!continued && planned().compensation && !at.compensates) run_.compensable.emplace_back(at.settled, index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_failed() {
  NodeState& at = node();
  const auto to = end_of(at.status, NodeEvent::fail);
  if (!to || !called()) return reject_fact();
  const std::string detail = text("detail");
  const bool route = flag("routed");
  if (route && !at.routes) return "is routed nowhere";
  enter(*to, detail.empty() ? "error" : detail);
  at.error = text("error");
  at.values["$status"] = "error";
  if (!route) {
    settle(index());
    resolve_caller(index());
    if (!at.compensates) run_.failures.insert(index());
    if (at.compensates && run_.error.size() < kMaxErrorBytes) {
      run_.error += "; compensation " + planned().name + " failed: " + at.error.substr(0, 200);
    }
    return std::nullopt;
  }
  remove_elements(index());
  call(*planned().error_node);
  resolve_caller(index());
  NodeState& taker = run_.nodes[*planned().error_node];
  if (taker.settled == 0) {
    taker.called_by.push_back(index());
  } else {
    run_.to_resolve.insert(index());
  }
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_unhandled() {
  if (!run_.to_resolve.contains(index())) return reject_fact();
  settle(index());
  run_.failures.insert(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_cancelled() {
  const auto to = advance(node().status, NodeEvent::cancel);
  if (!to) return reject_fact();
  const std::string detail = text("detail");
  if (detail != "cancelled" && detail != "skipped" && detail != "not_needed") return "names no reason";
  enter(*to, detail);
  node().error = text("error");
  node().values = {{"$status", detail}};
  settle(index());
  resolve_caller(index());
  return std::nullopt;
}

FlowFold::Verdict FlowFold::node_retried() {
  const auto to = advance(node().status, NodeEvent::retry);
  const std::uint32_t i = index();
  if (!to || !run_.to_retry.contains(i) || node().settled == 0) return reject_fact();
  run_.to_retry.erase(i);
  run_.failures.erase(i);
  reopen(i);
  if (planned().kind == NodeKind::each) reopen_absent(i);
  return std::nullopt;
}

FlowFold::Verdict FlowFold::compensating() {
  if (!run_.stopping || run_.compensable.empty() || run_.compensable.back().second != index()) return reject_fact();
  if (run_.unsettled != 0 || run_.status != FlowStatus::started) return reject_fact();
  run_.compensable.pop_back();
  node().compensated = true;
  run_.compensating = true;
  const std::uint32_t by = *planned().compensation;
  if (run_.uncalled.contains(by)) {
    run_.nodes[by].compensates = true;
    call(by);
  }
  refresh_detail();
  return std::nullopt;
}

// Facts of the whole flow, and the common code for all facts.

namespace {

constexpr std::size_t kMaxFactBytes = 16U << 20;  // a result in which each byte is escaped

bool is_outcome(std::string_view word) {
  return word == "failed" || word == "cancelled" || word == "timeout" || word == "result_too_large";
}

}  // namespace

std::string FlowFold::text(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_string() ? found->get<std::string>() : std::string();
}
std::uint64_t FlowFold::number(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}
bool FlowFold::flag(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_boolean() && found->get<bool>();
}

FlowFold::Verdict FlowFold::apply() {
  const FlowFoldHandler* row = fold_row(fact_.kind);
  if (row == nullptr) return "is not a known kind of fact";
  if (row->shape.of_node != fact_.node.has_value()) {
    return fact_.node ? "names a node" : "names no node";
  }
  if (fact_.node && *fact_.node >= plan_.nodes.size()) {
    return "names node " + std::to_string(*fact_.node) + " of " + std::to_string(plan_.nodes.size());
  }
  more_ = nlohmann::json::object();
  if (!fact_.more.empty()) {
    auto parsed = parse_json(fact_.more, kMaxFactBytes);
    if (!parsed || !parsed->is_object()) return "carries no JSON object";
    more_ = std::move(*parsed);
  }
  const bool after_end = fact_.kind == "control" || fact_.kind == "retried";
  if (is_terminal(run_.status) && !after_end) return reject_fact();
  return (this->*row->step)();
}

FlowFold::Verdict FlowFold::reject_fact() const {
  if (!fact_.node) return "of a flow that is " + std::string(to_string(run_.status)) + ' ' + run_.detail;
  const NodeState& at = run_.nodes[index()];
  const std::string flow = is_terminal(run_.status) ? " in a flow that has ended" : "";
  return "of node " + planned().name + ", which is " + std::string(to_string(at.status)) + ' ' + at.detail + flow;
}

FlowFold::Verdict FlowFold::started() {
  const auto to = advance(run_.status, RunEvent::start);
  if (!to || run_.stopping) return reject_fact();
  run_.status = *to;
  run_.started_ms = fact_.at_ms;
  run_.deadline_ms = number("deadline");
  refresh_detail();
  return std::nullopt;
}

FlowFold::Verdict FlowFold::control() {
  if (const std::string key = text("key"); !key.empty()) run_.keys.emplace(key, text("digest"));
  if (text("verb") == "signal" && !text("target").empty()) run_.signals[text("target")] = text("payload");
  return std::nullopt;
}

FlowFold::Verdict FlowFold::paused() {
  if (run_.status != FlowStatus::started || run_.paused || run_.cancelling) return reject_fact();
  run_.paused = true;
  refresh_detail();
  return std::nullopt;
}

FlowFold::Verdict FlowFold::resumed() {
  if (!run_.paused) return reject_fact();
  run_.paused = false;
  refresh_detail();
  return std::nullopt;
}

FlowFold::Verdict FlowFold::stopping() {
  const std::string outcome = text("outcome");
  if (!is_outcome(outcome)) return "names no outcome";
  const bool on_request = outcome == "cancelled" || outcome == "timeout";
  if (on_request ? run_.cancelling : run_.stopping || run_.status != FlowStatus::started) return reject_fact();
  run_.stopping = true;
  run_.outcome = outcome;
  if (run_.error.empty()) run_.error = text("error");
  if (on_request) {
    // A pause delays nodes that would start. Here only compensations start, and they were requested just now.
    run_.cancelling = true;
    run_.paused = false;
    for (const std::uint32_t i : run_.in_flight) {
      const bool known =
          !is_own(plan_.nodes[i].kind) && (plan_.nodes[i].kind == NodeKind::job || run_.nodes[i].child != 0);
      if (known && !run_.nodes[i].compensates) run_.to_cancel.insert(i);
    }
  }
  refresh_detail();
  return std::nullopt;
}

FlowFold::Verdict FlowFold::retried() {
  const bool stopped = run_.stopping && (run_.outcome == "failed" || run_.outcome == "timeout");
  const bool over = run_.status == FlowStatus::error;
  if (!stopped || run_.compensating || (run_.cancelling && !over)) return reject_fact();
  if (over) run_.status = *advance(run_.status, RunEvent::retry);
  collect_retries();
  run_.stopping = run_.cancelling = run_.paused = false;
  run_.outcome.clear();
  run_.error.clear();
  run_.ended_ms = 0;
  run_.deadline_ms = number("deadline");
  refresh_detail();
  return std::nullopt;
}

// Collects nodes that failed or never ran, except nodes that were skipped by a decision that still holds.
void FlowFold::collect_retries() {
  std::vector<std::uint32_t> found;
  const auto take = [&](std::uint32_t i) {
    if (run_.to_retry.insert(i).second) found.push_back(i);
  };
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    const NodeState& node = run_.nodes[i];
    const bool failed = node.status == NodeStatus::failed && node.settled != 0;
    const bool dropped = node.status == NodeStatus::cancelled && node.detail != "skipped" && node.detail != "absent";
    // An error node that can no longer be called follows its callers; see below.
    if (failed || (dropped && !(plan_.nodes[i].on_call && node.callers > 0))) take(i);
  }
  while (!found.empty()) {
    const std::uint32_t caller_index = found.back();
    const PlanNode& caller = plan_.nodes[caller_index];
    found.pop_back();
    if (!run_.nodes[caller_index].routes) continue;
    const NodeState& error_node = run_.nodes[*caller.error_node];
    if (error_node.status == NodeStatus::failed || error_node.status == NodeStatus::cancelled) take(*caller.error_node);
  }
}

FlowFold::Verdict FlowFold::ended() {
  const auto status = parse<FlowStatus>(text("status"));
  if (!status || !is_terminal(*status)) return "names no end";
  const auto to = advance(run_.status, *status == FlowStatus::finished ? RunEvent::finish : RunEvent::fail);
  if (!to) return reject_fact();
  if (run_.unsettled != 0 || !run_.uncalled.empty() || !run_.to_retry.empty()) return "while nodes have not settled";
  if ((*to == FlowStatus::error) != run_.stopping) return reject_fact();
  run_.status = *to;
  run_.detail = text("detail");
  run_.error = text("error");
  run_.ended_ms = fact_.at_ms;
  return std::nullopt;
}

// A checkpoint: the state as text. Only fields that do not follow from other fields are written; the others are
// computed again.

namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "run2";
constexpr std::size_t kMaxCheckpointBytes = 256U << 20;

bool untouched(const PlanNode& planned, const NodeState& node) {
  return node.status == NodeStatus::pending && node.runs == 0 && node.gates.empty() && node.since_ms == 0 &&
         node.detail == (planned.on_call ? "on_call" : "dependencies");
}

json node_json(const NodeState& node) {
  json out{{"s", to_string(node.status)}, {"d", node.detail}, {"t", node.since_ms}};
  if (!node.error.empty()) out["e"] = node.error;
  if (node.runs != 0) out["r"] = node.runs;
  if (node.until_ms != 0) out["u"] = node.until_ms;
  if (node.settled != 0) out["z"] = node.settled;
  if (!node.gates.empty()) out["g"] = node.gates;
  if (!node.values.empty()) out["v"] = node.values;
  if (node.child != 0) out["c"] = node.child;
  if (!node.approvers.empty()) out["a"] = node.approvers;
  if (node.result_bytes != 0) out["b"] = node.result_bytes;
  if (node.compensates) out["x"] = true;
  if (node.compensated) out["y"] = true;
  return out;
}

// Reads a value of the right type. Otherwise `to` is unchanged and `ok` is false.
template <class T>
void take(const json& from, const char* name, T& to, bool& ok) {
  const auto found = from.find(name);
  if (found == from.end()) return;
  try {
    const bool fits = !std::is_unsigned_v<T> || std::is_same_v<T, bool> || found->is_number_unsigned();
    if (!fits) ok = false;
    if (fits) found->get_to(to);
  } catch (const json::exception&) {
    ok = false;
  }
}

bool possible(const PlanNode& planned, const NodeState& node, std::uint64_t revision) {
  const bool routed = node.status == NodeStatus::failed && node.settled == 0;
  const bool over = is_terminal(node.status);
  const bool took_over = node.status == NodeStatus::completed && node.detail == "handled";
  if ((routed || took_over) && (planned.on_error != OnError::route || !planned.error_node)) return false;
  if (node.status == NodeStatus::running || (!routed && over != (node.settled != 0))) return false;
  if (node.settled > revision || (over && (node.until_ms != 0 || !node.gates.empty()))) return false;
  return node.gates.empty() || node.status == NodeStatus::pending;
}

bool node_of(const json& from, const PlanNode& planned, std::uint64_t revision, NodeState& node) {
  bool ok = from.is_object();
  if (!ok) return false;
  std::string status;
  take(from, "s", status, ok);
  take(from, "d", node.detail, ok);
  take(from, "t", node.since_ms, ok);
  take(from, "e", node.error, ok);
  take(from, "r", node.runs, ok);
  take(from, "u", node.until_ms, ok);
  take(from, "z", node.settled, ok);
  take(from, "g", node.gates, ok);
  take(from, "v", node.values, ok);
  take(from, "c", node.child, ok);
  take(from, "a", node.approvers, ok);
  take(from, "b", node.result_bytes, ok);
  take(from, "x", node.compensates, ok);
  take(from, "y", node.compensated, ok);
  const auto word = parse<NodeStatus>(status);
  if (!ok || !word) return false;
  node.status = *word;
  return possible(planned, node, revision);
}

bool flow_of(const json& from, RunState& run) {
  bool ok = true;
  std::string status;
  take(from, "revision", run.revision, ok);
  take(from, "status", status, ok);
  take(from, "detail", run.detail, ok);
  take(from, "error", run.error, ok);
  take(from, "paused", run.paused, ok);
  take(from, "stopping", run.stopping, ok);
  take(from, "cancelling", run.cancelling, ok);
  take(from, "compensating", run.compensating, ok);
  take(from, "outcome", run.outcome, ok);
  take(from, "started", run.started_ms, ok);
  take(from, "ended", run.ended_ms, ok);
  take(from, "deadline", run.deadline_ms, ok);
  take(from, "to_retry", run.to_retry, ok);
  take(from, "keys", run.keys, ok);
  take(from, "signals", run.signals, ok);
  take(from, "anomalies", run.anomalies, ok);
  const auto word = parse<FlowStatus>(status);
  if (word) run.status = *word;
  return ok && word;
}

}  // namespace

std::string checkpoint(const FlowPlan& plan, const RunState& run) {
  json out{{"plan", plan.hash},
           {"revision", run.revision},
           {"status", to_string(run.status)},
           {"detail", run.detail},
           {"error", run.error},
           {"paused", run.paused},
           {"stopping", run.stopping},
           {"cancelling", run.cancelling},
           {"outcome", run.outcome},
           {"compensating", run.compensating},
           {"started", run.started_ms},
           {"ended", run.ended_ms},
           {"deadline", run.deadline_ms},
           {"to_retry", run.to_retry},
           {"keys", run.keys},
           {"signals", run.signals},
           {"anomalies", run.anomalies}};
  json nodes = json::array();
  for (std::size_t i = 0; i < run.nodes.size(); ++i) {
    nodes.push_back(untouched(plan.nodes[i], run.nodes[i]) ? json(0) : node_json(run.nodes[i]));
  }
  out["nodes"] = std::move(nodes);
  const std::string text = dump_json(out);
  return std::string(kFormat) + ' ' + sha256_hex(text) + ' ' + text;
}

std::optional<RunState> restore(const FlowPlan& plan, std::string_view text) {
  const std::size_t head = kFormat.size() + 66;
  if (text.size() < head || text.size() > kMaxCheckpointBytes || text.substr(0, kFormat.size()) != kFormat)
    return std::nullopt;
  const std::string_view body = text.substr(head);
  if (text.substr(kFormat.size(), 66) != ' ' + sha256_hex(body) + ' ') return std::nullopt;
  // The digest shows that this code wrote the checkpoint, so positions of parse errors are not needed.
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  const auto hash = parsed.find("plan");
  if (hash == parsed.end() || *hash != plan.hash) return std::nullopt;
  const auto nodes = parsed.find("nodes");
  if (nodes == parsed.end() || !nodes->is_array() || nodes->size() != plan.nodes.size()) return std::nullopt;
  RunState run;
  if (!flow_of(parsed, run)) return std::nullopt;
  if (!run.to_retry.empty() && *run.to_retry.rbegin() >= plan.nodes.size()) return std::nullopt;
  run.nodes.resize(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    run.nodes[i].detail = plan.nodes[i].on_call ? "on_call" : "dependencies";
    const json& each = (*nodes)[i];
    if (each != 0 && !node_of(each, plan.nodes[i], run.revision, run.nodes[i])) return std::nullopt;
  }
  index_run(plan, run);
  return run;
}

namespace {

template <class Numbers>
void put_numbers(std::ostream& out, const char* name, const Numbers& numbers) {
  out << name << ':';
  for (const auto& each : numbers) {
    if constexpr (requires { each.first; }) {
      out << ' ' << each.first << '/' << each.second;
    } else {
      out << ' ' << each;
    }
  }
  out << '\n';
}

void put_node(std::ostream& out, const PlanNode& planned, const NodeState& node) {
  out << "node " << planned.name << ": " << to_string(node.status) << ' ' << node.detail << " error=" << node.error
      << " open_needs=" << node.open_needs << " runs=" << node.runs << " until=" << node.until_ms
      << " settled=" << node.settled << " child=" << node.child << " bytes=" << node.result_bytes
      << " compensates=" << node.compensates << " compensated=" << node.compensated << " routes=" << node.routes
      << " callers=" << node.callers_open << '/' << node.callers;
  for (const auto& [key, value] : node.values) out << ' ' << key << '=' << value;
  for (const std::string& gate : node.gates) out << " gate=" << gate;
  for (const Id approver : node.approvers) out << " approver=" << approver;
  auto called_by = node.called_by;
  std::sort(called_by.begin(), called_by.end());
  for (const std::uint32_t caller : called_by) out << " called_by=" << caller;
  out << '\n';
}

}  // namespace

std::string describe(const FlowPlan& plan, const RunState& run) {
  std::ostringstream out;
  out << "flow: " << to_string(run.status) << ' ' << run.detail << " revision=" << run.revision
      << " paused=" << run.paused << " stopping=" << run.stopping << " cancelling=" << run.cancelling
      << " compensating=" << run.compensating << " outcome=" << run.outcome << " deadline=" << run.deadline_ms
      << " unsettled=" << run.unsettled << " bytes=" << run.result_bytes << "\nerror: " << run.error << '\n';
  for (std::size_t i = 0; i < run.nodes.size(); ++i) put_node(out, plan.nodes[i], run.nodes[i]);
  put_numbers(out, "ready", run.ready);
  put_numbers(out, "ready_own", run.ready_own);
  put_numbers(out, "in_flight", run.in_flight);
  put_numbers(out, "waiting", run.waiting);
  put_numbers(out, "timers", run.timers);
  put_numbers(out, "gated", run.gated);
  put_numbers(out, "compensable", run.compensable);
  put_numbers(out, "met", run.met);
  put_numbers(out, "uncalled", run.uncalled);
  put_numbers(out, "to_cancel", run.to_cancel);
  put_numbers(out, "to_retry", run.to_retry);
  put_numbers(out, "to_resolve", run.to_resolve);
  put_numbers(out, "failures", run.failures);
  put_numbers(out, "awaited", run.awaited);
  put_numbers(out, "keys", run.keys);
  put_numbers(out, "signals", run.signals);
  put_numbers(out, "anomalies", run.anomalies);
  return out.str();
}

}  // namespace mycojobs
