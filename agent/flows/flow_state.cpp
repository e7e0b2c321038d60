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

using F = FlowFactApplier;
constexpr std::array kFactHandlers = std::to_array<FlowFactHandler>({
    {{"started", "trigger, actor, deadline", "the run began; deadline: when its time will be over, ms"},
     &F::on_started},
    {{"control", "verb, target, actor, comment, key, digest, payload", "a control was requested; its effects follow"},
     &F::on_control},
    {{"paused", "", "the flow is paused: no node starts until it is resumed"}, &F::on_paused},
    {{"resumed", "", "the flow is resumed"}, &F::on_resumed},
    {{"stopping", "outcome, error", "only compensations start; outcome: the future end of the flow"}, &F::on_stopping},
    {{"retried", "target, deadline", "failed nodes and the nodes that were skipped because of them are reset"},
     &F::on_retried},
    {{"ended", "status, detail, error", "the flow has ended and changes only after a retry"}, &F::on_ended},
    {{"node_gated", "gates, until, approvers", "its needs are met; these gates are closed", true}, &F::on_node_gated},
    {{"gate_opened", "gate", "one of its gates is open", true}, &F::on_gate_opened},
    {{"node_ready", "when", "all prerequisites are met; when: the conditions that are true", true}, &F::on_node_ready},
    {{"node_dispatched", "as, until, approvers, asks, when", "it is under way; as: the detail beside the status", true},
     &F::on_node_dispatched},
    {{"node_expanded", "count, values, bytes", "its elements are known; values: the values that conditions read", true},
     &F::on_node_expanded},
    {{"child_started", "flow", "its child flow runs", true}, &F::on_child_started},
    {{"cancel_sent", "", "its job or child was requested to end", true}, &F::on_cancel_sent},
    {{"node_completed", "detail, error, failed, values, bytes",
      "it has completed; values: the values that conditions read; failed: the detail of an ignored failure", true},
     &F::on_node_completed},
    {{"node_failed", "detail, error, routed", "it has failed; routed: its error node handles the failure", true},
     &F::on_node_failed},
    {{"node_unhandled", "", "its error node did not handle its failure", true}, &F::on_node_unhandled},
    {{"node_cancelled", "detail, error", "it has been settled without an own end", true}, &F::on_node_cancelled},
    {{"node_retried", "", "it is pending again", true}, &F::on_node_retried},
    {{"compensating", "by", "its compensation is called", true}, &F::on_compensating},
});

// Records an anomaly. A journal may hold any bytes, so the text is one printable line of bounded length.
void add_anomaly(RunState& run, const RunFact& fact, const std::string& problem) {
  if (run.anomalies.size() >= kMaxAnomalies) return;
  run.anomalies.push_back("revision " + std::to_string(fact.revision) + ": " + to_ascii(fact.kind, 60) + ' ' + problem);
}

void index_node(const FlowPlan& plan, RunState& run, std::uint32_t i) {
  const NodeState& node = run.nodes[i];
  const PlanNode& plan_node = plan.nodes[i];
  const bool is_settled = node.settled_revision != 0;
  const bool is_called = !plan_node.on_call || node.status != NodeStatus::pending || node.detail != "on_call";
  if (!is_settled && !is_called) run.uncalled.insert(i);
  if (!is_settled && is_called) ++run.unsettled;
  run.result_bytes += node.result_bytes;
  if (node.status == NodeStatus::ready) {
    run.ready.insert(i);
    if (is_run_by_flow(plan_node.kind)) run.ready_without_slot.insert(i);
  }
  if (node.status == NodeStatus::dispatched) {
    run.in_flight.insert(i);
    if (is_run_by_flow(plan_node.kind)) run.waiting.insert(i);
    const bool can_cancel = plan_node.kind == NodeKind::job || (plan_node.kind == NodeKind::flow && node.child != 0);
    if (run.cancelling && can_cancel && !node.is_compensation && node.detail != "cancelling")
      run.pending_cancels.insert(i);
    if (node.child != 0) run.awaited_flows.emplace(node.child, i);
  }
  if (node.until_ms != 0) run.timers.emplace(node.until_ms, i);
  if (!node.gates.empty()) run.gated.insert(i);
  for (const std::string& gate : node.gates) {
    if (const Id flow = parse_flow_gate(gate)) run.awaited_flows.emplace(flow, i);
  }
  if (node.status == NodeStatus::failed && is_settled && !node.is_compensation) run.failures.insert(i);
  if (node.status == NodeStatus::completed && node.detail == "ok" && plan_node.compensation && !node.is_compensation &&
      !node.compensated) {
    run.compensable.emplace_back(node.settled_revision, i);
  }
  if (node.status == NodeStatus::pending && node.gates.empty()) {
    const bool cannot_be_called = !is_called && node.possible_callers > 0 && node.open_callers == 0;
    if (plan_node.on_call ? is_called || cannot_be_called : node.open_needs == 0) run.evaluable.insert(i);
  }
}

// Computes the open needs and the callers of all nodes.
void index_relations(const FlowPlan& plan, RunState& run) {
  std::vector<bool> is_compensation(plan.nodes.size(), false);
  for (const PlanNode& node : plan.nodes) {
    if (node.compensation) is_compensation[*node.compensation] = true;
  }
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const PlanNode& plan_node = plan.nodes[i];
    NodeState& node = run.nodes[i];
    if (node.settled_revision == 0) {
      for (const std::uint32_t dependent : plan_node.dependents) ++run.nodes[dependent].open_needs;
    }
    // A compensation that fails has a fact, and the next compensation runs: its failure is not routed.
    node.can_call_error_node = plan_node.on_error == OnError::route && plan_node.error_node &&
                               *plan_node.error_node != i && !is_compensation[i];
    if (!node.can_call_error_node) continue;
    NodeState& error_node = run.nodes[*plan_node.error_node];
    const bool is_routed = node.status == NodeStatus::failed && node.settled_revision == 0;
    ++error_node.possible_callers;
    if (node.settled_revision == 0 && !is_routed) ++error_node.open_callers;
    if (!is_routed) continue;
    if (error_node.settled_revision == 0) {
      error_node.called_by.push_back(i);
    } else {
      run.pending_resolutions.insert(i);
    }
  }
}

}  // namespace

const FlowFactHandler* find_flow_fact_handler(std::string_view kind) {
  const auto* row = std::find_if(kFactHandlers.begin(), kFactHandlers.end(),
                                 [&](const FlowFactHandler& handler) { return handler.shape.kind == kind; });
  return row == kFactHandlers.end() ? nullptr : row;
}

Id parse_flow_gate(std::string_view gate) {
  std::uint64_t flow = 0;
  const bool is_valid = gate.substr(0, 5) == "flow:" && parse_u64(gate.substr(5), flow) && flow <= UINT32_MAX;
  return is_valid ? static_cast<Id>(flow) : 0;
}

void rebuild_indexes(const FlowPlan& plan, RunState& run) {
  index_relations(plan, run);
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) index_node(plan, run, i);
  std::sort(run.compensable.begin(), run.compensable.end());
}

std::string compute_detail(const RunState& run) {
  if (run.compensating) return "compensating";
  if (run.cancelling) return "cancelling";
  if (run.stopping) return "stopping";
  if (run.status == FlowStatus::dispatched) return "new";
  return run.paused ? "paused" : "running";
}

bool has_not_started(const FlowPlan& plan, const RunState& run, std::uint32_t node) {
  const auto each_node = plan.nodes[node].each_node;
  if (!each_node) return false;
  return run.nodes[node].detail == "absent" ||
         (plan.nodes[*each_node].element_source && run.nodes[*each_node].settled_revision == 0);
}

Result<std::vector<std::string>> get_elements(const FlowPlan& plan, const RunState& run, std::uint32_t node) {
  const PlanNode& each_node = plan.nodes[node];
  if (!each_node.element_source) return each_node.elements;
  const std::string path = plan.nodes[each_node.element_source->node].name + '.' + each_node.element_source->key;
  const TextMap& values = run.nodes[each_node.element_source->node].values;
  const auto value = values.find(each_node.element_source->key);
  if (value == values.end()) return fail(Code::invalid, path + " is missing: there is no list of elements");
  const auto parsed = parse_exact_json(value->second);
  if (!parsed && is_json(value->second)) return fail(parsed.error(), path);
  auto elements = parsed ? plans::split_elements(*parsed) : std::nullopt;
  if (!elements) return fail(Code::invalid, path + " is " + excerpt(value->second) + ", no list and no map");
  if (elements->size() > each_node.max_elements) {
    return fail(Code::invalid, path + " has " + std::to_string(elements->size()) + " elements, more than " +
                                   std::to_string(each_node.max_elements) + ": give the node a larger max (at most " +
                                   std::to_string(kMaxElements) + "), or the list fewer");
  }
  for (std::size_t i = 0; i < elements->size(); ++i) {
    if ((*elements)[i].size() <= kMaxElementBytes) continue;
    return fail(Code::invalid, path + '[' + std::to_string(i) + "] is longer than " + std::to_string(kMaxElementBytes) +
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
  rebuild_indexes(plan, run);
  return run;
}

void fold(const FlowPlan& plan, RunState& run, const RunFact& fact) {
  if (fact.revision <= run.revision) {
    return add_anomaly(run, fact, "follows revision " + std::to_string(run.revision));
  }
  if (fact.revision != run.revision + 1) {
    add_anomaly(run, fact, "follows revision " + std::to_string(run.revision) + ": the facts in between are lost");
  }
  run.revision = fact.revision;
  if (const auto rejection = FlowFactApplier(plan, run, fact).apply()) add_anomaly(run, fact, *rejection);
}

std::vector<RunFactShape> run_fact_shapes() {
  std::vector<RunFactShape> shapes;
  for (const auto& row : kFactHandlers) shapes.push_back(row.shape);
  return shapes;
}

// Effects of a node's status changes on the lists of the run and on other nodes.

void FlowFactApplier::set_status(NodeStatus status, std::string detail) {
  node().status = status;
  node().detail = std::move(detail);
  node().since_ms = fact_.at_ms;
}

void FlowFactApplier::remove_from_indexes(std::uint32_t index) {
  NodeState& state = run_.nodes[index];
  for (auto* indexes : {&run_.ready, &run_.ready_without_slot, &run_.in_flight, &run_.waiting, &run_.gated,
                        &run_.evaluable, &run_.pending_cancels}) {
    indexes->erase(index);
  }
  if (state.until_ms != 0) run_.timers.erase({state.until_ms, index});
  if (state.child != 0) run_.awaited_flows.erase({state.child, index});
  for (const std::string& gate : state.gates) run_.awaited_flows.erase({parse_flow_gate(gate), index});
  state.until_ms = 0;
  state.gates.clear();
}

void FlowFactApplier::resolve_caller(std::uint32_t index) {
  if (!run_.nodes[index].can_call_error_node) return;
  const std::uint32_t error_node = *plan_node(index).error_node;
  if (--run_.nodes[error_node].open_callers == 0 && run_.uncalled.contains(error_node))
    run_.evaluable.insert(error_node);
}

void FlowFactApplier::settle_node(std::uint32_t index) {
  NodeState& state = run_.nodes[index];
  remove_from_indexes(index);
  state.settled_revision = fact_.revision;
  if (run_.uncalled.erase(index) == 0) --run_.unsettled;
  run_.pending_resolutions.erase(index);
  if (plan_node(index).kind == NodeKind::each && state.detail != "ok") settle_absent_elements(index, 0);
  for (const std::uint32_t dependent : plan_node(index).dependents) {
    NodeState& dependent_state = run_.nodes[dependent];
    const bool is_last = --dependent_state.open_needs == 0;
    if (is_last && !plan_.nodes[dependent].on_call && dependent_state.status == NodeStatus::pending)
      run_.evaluable.insert(dependent);
  }
  run_.pending_resolutions.insert(state.called_by.begin(), state.called_by.end());
  state.called_by.clear();
}

void FlowFactApplier::settle_absent_elements(std::uint32_t each_node, std::uint32_t count) {
  for (std::uint32_t index = each_node + 1 + count; index <= each_node + plan_node(each_node).max_elements; ++index) {
    NodeState& element = run_.nodes[index];
    if (element.settled_revision != 0 || element.status != NodeStatus::pending) continue;
    element.status = NodeStatus::cancelled;
    element.detail = "absent";
    element.since_ms = fact_.at_ms;
    element.values = {{"$status", element.detail}};
    settle_node(index);
    resolve_caller(index);
  }
}

void FlowFactApplier::reopen_absent_elements(std::uint32_t each_node) {
  for (std::uint32_t index = each_node + 1; index <= each_node + plan_node(each_node).max_elements; ++index) {
    if (run_.nodes[index].settled_revision != 0 && run_.nodes[index].detail == "absent") reopen_node(index);
  }
}

void FlowFactApplier::reopen_node(std::uint32_t index) {
  const PlanNode& plan = plan_node(index);
  NodeState& state = run_.nodes[index];
  for (const std::uint32_t dependent : plan.dependents) {
    if (run_.nodes[dependent].open_needs++ == 0 && !plan_node(dependent).on_call) run_.evaluable.erase(dependent);
  }
  if (state.can_call_error_node) {
    ++run_.nodes[*plan.error_node].open_callers;
    if (run_.uncalled.contains(*plan.error_node)) run_.evaluable.erase(*plan.error_node);
  }
  state.status = NodeStatus::pending;
  state.detail = plan.on_call ? "on_call" : "dependencies";
  state.since_ms = fact_.at_ms;
  state.error.clear();
  state.values.clear();
  state.approvers.clear();
  state.settled_revision = 0;
  state.child = 0;
  run_.result_bytes -= state.result_bytes;
  state.result_bytes = 0;
  if (plan.on_call) {
    run_.uncalled.insert(index);
    if (state.possible_callers > 0 && state.open_callers == 0) run_.evaluable.insert(index);
  } else {
    ++run_.unsettled;
    if (state.open_needs == 0) run_.evaluable.insert(index);
  }
}

void FlowFactApplier::call_node(std::uint32_t on_call_node) {
  if (run_.uncalled.erase(on_call_node) == 0) return;
  ++run_.unsettled;
  run_.nodes[on_call_node].detail = "dependencies";
  run_.nodes[on_call_node].since_ms = fact_.at_ms;
  run_.evaluable.insert(on_call_node);
}

void FlowFactApplier::apply_result_values() {
  const auto match = fact_details_.find("values");
  if (match == fact_details_.end() || !match->is_object()) return;
  for (const auto& item : match->items()) {
    if (item.value().is_string()) node().values[item.key()] = item.value().get<std::string>();
  }
}

// Facts of one node.

namespace {

constexpr std::size_t kMaxErrorBytes = 4096;

std::vector<std::string> get_texts(const nlohmann::json& details, std::string_view name) {
  std::vector<std::string> out;
  const auto match = details.find(name);
  if (match == details.end() || !match->is_array()) return out;
  for (const auto& item : *match) {
    if (item.is_string() && !item.get_ref<const std::string&>().empty()) out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<Id> get_ids(const nlohmann::json& details, std::string_view name) {
  std::vector<Id> out;
  const auto match = details.find(name);
  if (match == details.end() || !match->is_array()) return out;
  for (const auto& item : *match) {
    if (item.is_number_unsigned() && item.get<std::uint64_t>() <= UINT32_MAX) out.push_back(item.get<Id>());
  }
  return out;
}

// Returns the status after the end of a node that is in flight. A dispatched node passes through `running`, which only
// readers see.
std::optional<NodeStatus> find_end_status(NodeStatus from, NodeEvent event) {
  if (from == NodeStatus::dispatched) from = *advance(from, NodeEvent::start);
  return advance(from, event);
}

}  // namespace

FlowFactApplier::Rejection FlowFactApplier::on_node_gated() {
  const auto gates = get_texts(fact_details_, "gates");
  if (!run_.evaluable.contains(node_index()) || !is_called() || node().detail == "gate") return reject_fact();
  if (gates.empty()) return "names no gate";
  set_status(NodeStatus::pending, "gate");
  run_.evaluable.erase(node_index());
  run_.gated.insert(node_index());
  node().gates = gates;
  node().approvers = get_ids(fact_details_, "approvers");
  node().until_ms = get_number("until");
  if (node().until_ms != 0) run_.timers.emplace(node().until_ms, node_index());
  for (const std::string& gate : gates) {
    if (const Id flow = parse_flow_gate(gate)) run_.awaited_flows.emplace(flow, node_index());
  }
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_gate_opened() {
  NodeState& state = node();
  const std::string gate = get_text("gate");
  const auto match = std::find(state.gates.begin(), state.gates.end(), gate);
  if (match == state.gates.end()) return reject_fact();
  state.gates.erase(std::remove(state.gates.begin(), state.gates.end(), gate), state.gates.end());
  if (const Id flow = parse_flow_gate(gate)) run_.awaited_flows.erase({flow, node_index()});
  if (!state.gates.empty()) return std::nullopt;
  run_.gated.erase(node_index());
  if (state.until_ms != 0) run_.timers.erase({state.until_ms, node_index()});
  state.until_ms = 0;
  run_.evaluable.insert(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_ready() {
  const auto new_status = advance(node().status, NodeEvent::dependencies_met);
  if (!new_status || !run_.evaluable.contains(node_index()) || !is_called()) return reject_fact();
  run_.evaluable.erase(node_index());
  set_status(*new_status, "");
  run_.ready.insert(node_index());
  if (is_run_by_flow(plan_node().kind)) run_.ready_without_slot.insert(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_dispatched() {
  NodeState& state = node();
  if (plan_node().kind == NodeKind::each) return "is for a node that is only expanded";
  if (state.status == NodeStatus::pending && (!run_.evaluable.contains(node_index()) || !is_called()))
    return reject_fact();
  const auto ready =
      state.status == NodeStatus::pending ? advance(state.status, NodeEvent::dependencies_met) : state.status;
  const auto new_status = advance(*ready, NodeEvent::dispatch);
  if (!new_status || run_.status != FlowStatus::started || (run_.stopping && !state.is_compensation))
    return reject_fact();
  const std::string detail = get_text("as");
  if (detail != (plan_node().kind == NodeKind::job ? "queued" : to_string(plan_node().kind)))
    return "is running as another kind of node";
  remove_from_indexes(node_index());
  set_status(*new_status, detail);
  ++state.runs;
  run_.in_flight.insert(node_index());
  if (is_run_by_flow(plan_node().kind)) {
    run_.waiting.insert(node_index());
    state.until_ms = get_number("until");
    if (state.until_ms != 0) run_.timers.emplace(state.until_ms, node_index());
    state.approvers = get_ids(fact_details_, "approvers");
  }
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_expanded() {
  NodeState& state = node();
  const std::uint64_t count = get_number("count");
  const bool is_evaluable =
      state.status == NodeStatus::pending ? run_.evaluable.contains(node_index()) : state.status == NodeStatus::ready;
  if (plan_node().kind != NodeKind::each || state.settled_revision != 0 || !is_evaluable || !is_called())
    return reject_fact();
  if (run_.status != FlowStatus::started || run_.stopping) return reject_fact();
  if (count > plan_node().max_elements) return "has more elements than places";
  set_status(NodeStatus::completed, "ok");
  ++state.runs;
  state.error.clear();
  state.values.clear();
  apply_result_values();
  state.values["$status"] = "finished";
  state.result_bytes = get_number("bytes");
  run_.result_bytes += state.result_bytes;
  settle_absent_elements(node_index(), static_cast<std::uint32_t>(count));
  settle_node(node_index());
  resolve_caller(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_child_started() {
  const std::uint64_t flow = get_number("flow");
  if (plan_node().kind != NodeKind::flow || node().status != NodeStatus::dispatched || node().child != 0) {
    return reject_fact();
  }
  if (flow == 0 || flow > UINT32_MAX) return "names no flow";
  node().child = static_cast<Id>(flow);
  run_.awaited_flows.emplace(node().child, node_index());
  if (run_.cancelling && !node().is_compensation) run_.pending_cancels.insert(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_cancel_sent() {
  if (run_.pending_cancels.erase(node_index()) == 0) return reject_fact();
  set_status(node().status, "cancelling");
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_completed() {
  NodeState& state = node();
  const std::string detail = get_text("detail");
  if (state.settled_revision != 0) return reject_fact();
  if (detail == "handled") {
    if (!run_.pending_resolutions.contains(node_index())) return reject_fact();
    set_status(*advance(state.status, NodeEvent::handle), detail);
    settle_node(node_index());
    return std::nullopt;
  }
  const bool is_continued = detail == "continued";
  if (!is_continued && detail != "ok") return "names no detail of a completed node";
  const auto new_status = find_end_status(state.status, is_continued ? NodeEvent::fail : NodeEvent::complete);
  if (!new_status || !is_called()) return reject_fact();
  set_status(is_continued ? *advance(*new_status, NodeEvent::handle) : *new_status, detail);
  state.error = get_text("error");
  state.values.clear();
  apply_result_values();
  state.values["$status"] = is_continued ? "error" : "finished";
  state.result_bytes = get_number("bytes");
  run_.result_bytes += state.result_bytes;
  settle_node(node_index());
  resolve_caller(node_index());
  if (!is_continued && plan_node().compensation && !state.is_compensation)
    run_.compensable.emplace_back(state.settled_revision, node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_failed() {
  NodeState& state = node();
  const auto new_status = find_end_status(state.status, NodeEvent::fail);
  if (!new_status || !is_called()) return reject_fact();
  const std::string detail = get_text("detail");
  const bool is_routed = get_flag("routed");
  if (is_routed && !state.can_call_error_node) return "is routed nowhere";
  set_status(*new_status, detail.empty() ? "error" : detail);
  state.error = get_text("error");
  state.values["$status"] = "error";
  if (!is_routed) {
    settle_node(node_index());
    resolve_caller(node_index());
    if (!state.is_compensation) run_.failures.insert(node_index());
    if (state.is_compensation && run_.error.size() < kMaxErrorBytes) {
      run_.error += "; compensation " + plan_node().name + " failed: " + state.error.substr(0, 200);
    }
    return std::nullopt;
  }
  remove_from_indexes(node_index());
  call_node(*plan_node().error_node);
  resolve_caller(node_index());
  NodeState& error_state = run_.nodes[*plan_node().error_node];
  if (error_state.settled_revision == 0) {
    error_state.called_by.push_back(node_index());
  } else {
    run_.pending_resolutions.insert(node_index());
  }
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_unhandled() {
  if (!run_.pending_resolutions.contains(node_index())) return reject_fact();
  settle_node(node_index());
  run_.failures.insert(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_cancelled() {
  const auto new_status = advance(node().status, NodeEvent::cancel);
  if (!new_status) return reject_fact();
  const std::string detail = get_text("detail");
  if (detail != "cancelled" && detail != "skipped" && detail != "not_needed") return "names no reason";
  set_status(*new_status, detail);
  node().error = get_text("error");
  node().values = {{"$status", detail}};
  settle_node(node_index());
  resolve_caller(node_index());
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_node_retried() {
  const auto new_status = advance(node().status, NodeEvent::retry);
  const std::uint32_t i = node_index();
  if (!new_status || !run_.pending_retries.contains(i) || node().settled_revision == 0) return reject_fact();
  run_.pending_retries.erase(i);
  run_.failures.erase(i);
  reopen_node(i);
  if (plan_node().kind == NodeKind::each) reopen_absent_elements(i);
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_compensating() {
  if (!run_.stopping || run_.compensable.empty() || run_.compensable.back().second != node_index())
    return reject_fact();
  if (run_.unsettled != 0 || run_.status != FlowStatus::started) return reject_fact();
  run_.compensable.pop_back();
  node().compensated = true;
  run_.compensating = true;
  const std::uint32_t compensation = *plan_node().compensation;
  if (run_.uncalled.contains(compensation)) {
    run_.nodes[compensation].is_compensation = true;
    call_node(compensation);
  }
  update_detail();
  return std::nullopt;
}

// Facts of the whole flow, and the common code for all facts.

namespace {

constexpr std::size_t kMaxFactBytes = 16U << 20;  // a result in which each byte is escaped

bool is_outcome(std::string_view word) {
  return word == "failed" || word == "cancelled" || word == "timeout" || word == "result_too_large";
}

}  // namespace

std::string FlowFactApplier::get_text(std::string_view name) const { return text_field(fact_details_, name); }
std::uint64_t FlowFactApplier::get_number(std::string_view name) const {
  const auto match = fact_details_.find(name);
  return match != fact_details_.end() && match->is_number_unsigned() ? match->get<std::uint64_t>() : 0;
}
bool FlowFactApplier::get_flag(std::string_view name) const {
  const auto match = fact_details_.find(name);
  return match != fact_details_.end() && match->is_boolean() && match->get<bool>();
}

FlowFactApplier::Rejection FlowFactApplier::apply() {
  const FlowFactHandler* row = find_flow_fact_handler(fact_.kind);
  if (row == nullptr) return "is not a known kind of fact";
  if (row->shape.has_node != fact_.node.has_value()) {
    return fact_.node ? "names a node" : "names no node";
  }
  if (fact_.node && *fact_.node >= plan_.nodes.size()) {
    return "names node " + std::to_string(*fact_.node) + " of " + std::to_string(plan_.nodes.size());
  }
  fact_details_ = nlohmann::json::object();
  if (!fact_.data_json.empty()) {
    auto parsed = parse_json(fact_.data_json, kMaxFactBytes);
    if (!parsed || !parsed->is_object()) return "carries no JSON object";
    fact_details_ = std::move(*parsed);
  }
  const bool is_allowed_after_end = fact_.kind == "control" || fact_.kind == "retried";
  if (is_terminal(run_.status) && !is_allowed_after_end) return reject_fact();
  return (this->*row->handler)();
}

FlowFactApplier::Rejection FlowFactApplier::reject_fact() const {
  if (!fact_.node) return "of a flow that is " + std::string(to_string(run_.status)) + ' ' + run_.detail;
  const NodeState& state = run_.nodes[node_index()];
  const std::string flow = is_terminal(run_.status) ? " in a flow that has ended" : "";
  return "of node " + plan_node().name + ", which is " + std::string(to_string(state.status)) + ' ' + state.detail +
         flow;
}

FlowFactApplier::Rejection FlowFactApplier::on_started() {
  const auto new_status = advance(run_.status, RunEvent::start);
  if (!new_status || run_.stopping) return reject_fact();
  run_.status = *new_status;
  run_.started_ms = fact_.at_ms;
  run_.deadline_ms = get_number("deadline");
  update_detail();
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_control() {
  if (const std::string key = get_text("key"); !key.empty()) run_.control_digests.emplace(key, get_text("digest"));
  if (get_text("verb") == "signal" && !get_text("target").empty())
    run_.signals[get_text("target")] = get_text("payload");
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_paused() {
  if (run_.status != FlowStatus::started || run_.paused || run_.cancelling) return reject_fact();
  run_.paused = true;
  update_detail();
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_resumed() {
  if (!run_.paused) return reject_fact();
  run_.paused = false;
  update_detail();
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_stopping() {
  const std::string outcome = get_text("outcome");
  if (!is_outcome(outcome)) return "names no outcome";
  const bool is_requested = outcome == "cancelled" || outcome == "timeout";
  if (is_requested ? run_.cancelling : run_.stopping || run_.status != FlowStatus::started) return reject_fact();
  run_.stopping = true;
  run_.outcome = outcome;
  if (run_.error.empty()) run_.error = get_text("error");
  if (is_requested) {
    // A pause delays nodes that would start. Here only compensations start, and they were requested just now.
    run_.cancelling = true;
    run_.paused = false;
    for (const std::uint32_t i : run_.in_flight) {
      const bool can_cancel =
          !is_run_by_flow(plan_.nodes[i].kind) && (plan_.nodes[i].kind == NodeKind::job || run_.nodes[i].child != 0);
      if (can_cancel && !run_.nodes[i].is_compensation) run_.pending_cancels.insert(i);
    }
  }
  update_detail();
  return std::nullopt;
}

FlowFactApplier::Rejection FlowFactApplier::on_retried() {
  const bool can_retry = run_.stopping && (run_.outcome == "failed" || run_.outcome == "timeout");
  const bool has_ended = run_.status == FlowStatus::error;
  if (!can_retry || run_.compensating || (run_.cancelling && !has_ended)) return reject_fact();
  if (has_ended) run_.status = *advance(run_.status, RunEvent::retry);
  collect_nodes_to_retry();
  run_.stopping = run_.cancelling = run_.paused = false;
  run_.outcome.clear();
  run_.error.clear();
  run_.ended_ms = 0;
  run_.deadline_ms = get_number("deadline");
  update_detail();
  return std::nullopt;
}

// Collects nodes that failed or never ran, except nodes that were skipped by a decision that still holds.
void FlowFactApplier::collect_nodes_to_retry() {
  std::vector<std::uint32_t> added;
  const auto add = [&](std::uint32_t i) {
    if (run_.pending_retries.insert(i).second) added.push_back(i);
  };
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    const NodeState& node = run_.nodes[i];
    const bool has_failed = node.status == NodeStatus::failed && node.settled_revision != 0;
    const bool is_cancelled =
        node.status == NodeStatus::cancelled && node.detail != "skipped" && node.detail != "absent";
    // An error node that can no longer be called follows its callers; see below.
    if (has_failed || (is_cancelled && !(plan_.nodes[i].on_call && node.possible_callers > 0))) add(i);
  }
  while (!added.empty()) {
    const std::uint32_t caller_index = added.back();
    const PlanNode& caller = plan_.nodes[caller_index];
    added.pop_back();
    if (!run_.nodes[caller_index].can_call_error_node) continue;
    const NodeState& error_node = run_.nodes[*caller.error_node];
    if (error_node.status == NodeStatus::failed || error_node.status == NodeStatus::cancelled) add(*caller.error_node);
  }
}

FlowFactApplier::Rejection FlowFactApplier::on_ended() {
  const auto status = parse<FlowStatus>(get_text("status"));
  if (!status || !is_terminal(*status)) return "names no end";
  const auto new_status = advance(run_.status, *status == FlowStatus::finished ? RunEvent::finish : RunEvent::fail);
  if (!new_status) return reject_fact();
  if (run_.unsettled != 0 || !run_.uncalled.empty() || !run_.pending_retries.empty())
    return "while nodes have not settled";
  if ((*new_status == FlowStatus::error) != run_.stopping) return reject_fact();
  run_.status = *new_status;
  run_.detail = get_text("detail");
  run_.error = get_text("error");
  run_.ended_ms = fact_.at_ms;
  return std::nullopt;
}

// A checkpoint: the state as text. Only fields that do not follow from other fields are written; the others are
// computed again.

namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "run2";
constexpr std::size_t kMaxCheckpointBytes = 256U << 20;

bool is_initial(const PlanNode& plan_node, const NodeState& node) {
  return node.status == NodeStatus::pending && node.runs == 0 && node.gates.empty() && node.since_ms == 0 &&
         node.detail == (plan_node.on_call ? "on_call" : "dependencies");
}

json node_to_json(const NodeState& node) {
  json out{{"s", to_string(node.status)}, {"d", node.detail}, {"t", node.since_ms}};
  if (!node.error.empty()) out["e"] = node.error;
  if (node.runs != 0) out["r"] = node.runs;
  if (node.until_ms != 0) out["u"] = node.until_ms;
  if (node.settled_revision != 0) out["z"] = node.settled_revision;
  if (!node.gates.empty()) out["g"] = node.gates;
  if (!node.values.empty()) out["v"] = node.values;
  if (node.child != 0) out["c"] = node.child;
  if (!node.approvers.empty()) out["a"] = node.approvers;
  if (node.result_bytes != 0) out["b"] = node.result_bytes;
  if (node.is_compensation) out["x"] = true;
  if (node.compensated) out["y"] = true;
  return out;
}

// Reads a value of the right type into `out`. For any other type `out` is unchanged and is_valid becomes false.
template <class T>
void read_field(const json& object, const char* name, T& out, bool& is_valid) {
  const auto match = object.find(name);
  if (match == object.end()) return;
  try {
    const bool has_right_type = !std::is_unsigned_v<T> || std::is_same_v<T, bool> || match->is_number_unsigned();
    if (!has_right_type) is_valid = false;
    if (has_right_type) match->get_to(out);
  } catch (const json::exception&) {
    is_valid = false;
  }
}

bool is_valid_state(const PlanNode& plan_node, const NodeState& node, std::uint64_t revision) {
  const bool is_routed = node.status == NodeStatus::failed && node.settled_revision == 0;
  const bool has_ended = is_terminal(node.status);
  const bool was_handled = node.status == NodeStatus::completed && node.detail == "handled";
  if ((is_routed || was_handled) && (plan_node.on_error != OnError::route || !plan_node.error_node)) return false;
  if (node.status == NodeStatus::running || (!is_routed && has_ended != (node.settled_revision != 0))) return false;
  if (node.settled_revision > revision || (has_ended && (node.until_ms != 0 || !node.gates.empty()))) return false;
  return node.gates.empty() || node.status == NodeStatus::pending;
}

bool parse_node_state(const json& object, const PlanNode& plan_node, std::uint64_t revision, NodeState& node) {
  bool is_valid = object.is_object();
  if (!is_valid) return false;
  std::string status;
  read_field(object, "s", status, is_valid);
  read_field(object, "d", node.detail, is_valid);
  read_field(object, "t", node.since_ms, is_valid);
  read_field(object, "e", node.error, is_valid);
  read_field(object, "r", node.runs, is_valid);
  read_field(object, "u", node.until_ms, is_valid);
  read_field(object, "z", node.settled_revision, is_valid);
  read_field(object, "g", node.gates, is_valid);
  read_field(object, "v", node.values, is_valid);
  read_field(object, "c", node.child, is_valid);
  read_field(object, "a", node.approvers, is_valid);
  read_field(object, "b", node.result_bytes, is_valid);
  read_field(object, "x", node.is_compensation, is_valid);
  read_field(object, "y", node.compensated, is_valid);
  const auto parsed_status = parse<NodeStatus>(status);
  if (!is_valid || !parsed_status) return false;
  node.status = *parsed_status;
  return is_valid_state(plan_node, node, revision);
}

bool parse_run_fields(const json& object, RunState& run) {
  bool is_valid = true;
  std::string status;
  read_field(object, "revision", run.revision, is_valid);
  read_field(object, "status", status, is_valid);
  read_field(object, "detail", run.detail, is_valid);
  read_field(object, "error", run.error, is_valid);
  read_field(object, "paused", run.paused, is_valid);
  read_field(object, "stopping", run.stopping, is_valid);
  read_field(object, "cancelling", run.cancelling, is_valid);
  read_field(object, "compensating", run.compensating, is_valid);
  read_field(object, "outcome", run.outcome, is_valid);
  read_field(object, "started", run.started_ms, is_valid);
  read_field(object, "ended", run.ended_ms, is_valid);
  read_field(object, "deadline", run.deadline_ms, is_valid);
  read_field(object, "to_retry", run.pending_retries, is_valid);
  read_field(object, "keys", run.control_digests, is_valid);
  read_field(object, "signals", run.signals, is_valid);
  read_field(object, "anomalies", run.anomalies, is_valid);
  const auto parsed_status = parse<FlowStatus>(status);
  if (parsed_status) run.status = *parsed_status;
  return is_valid && parsed_status;
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
           {"to_retry", run.pending_retries},
           {"keys", run.control_digests},
           {"signals", run.signals},
           {"anomalies", run.anomalies}};
  json nodes = json::array();
  for (std::size_t i = 0; i < run.nodes.size(); ++i) {
    nodes.push_back(is_initial(plan.nodes[i], run.nodes[i]) ? json(0) : node_to_json(run.nodes[i]));
  }
  out["nodes"] = std::move(nodes);
  const std::string text = dump_json(out);
  return std::string(kFormat) + ' ' + sha256_hex(text) + ' ' + text;
}

std::optional<RunState> restore(const FlowPlan& plan, std::string_view text) {
  const std::size_t header_bytes = kFormat.size() + 66;
  if (text.size() < header_bytes || text.size() > kMaxCheckpointBytes || text.substr(0, kFormat.size()) != kFormat)
    return std::nullopt;
  const std::string_view body = text.substr(header_bytes);
  if (text.substr(kFormat.size(), 66) != ' ' + sha256_hex(body) + ' ') return std::nullopt;
  // The digest shows that this code wrote the checkpoint, so positions of parse errors are not needed.
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  const auto hash = parsed.find("plan");
  if (hash == parsed.end() || *hash != plan.hash) return std::nullopt;
  const auto nodes = parsed.find("nodes");
  if (nodes == parsed.end() || !nodes->is_array() || nodes->size() != plan.nodes.size()) return std::nullopt;
  RunState run;
  if (!parse_run_fields(parsed, run)) return std::nullopt;
  if (!run.pending_retries.empty() && *run.pending_retries.rbegin() >= plan.nodes.size()) return std::nullopt;
  run.nodes.resize(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    run.nodes[i].detail = plan.nodes[i].on_call ? "on_call" : "dependencies";
    const json& node = (*nodes)[i];
    if (node != 0 && !parse_node_state(node, plan.nodes[i], run.revision, run.nodes[i])) return std::nullopt;
  }
  rebuild_indexes(plan, run);
  return run;
}

namespace {

template <class Numbers>
void print_numbers(std::ostream& out, const char* name, const Numbers& numbers) {
  out << name << ':';
  for (const auto& number : numbers) {
    if constexpr (requires { number.first; }) {
      out << ' ' << number.first << '/' << number.second;
    } else {
      out << ' ' << number;
    }
  }
  out << '\n';
}

void print_node_state(std::ostream& out, const PlanNode& plan_node, const NodeState& node) {
  out << "node " << plan_node.name << ": " << to_string(node.status) << ' ' << node.detail << " error=" << node.error
      << " open_needs=" << node.open_needs << " runs=" << node.runs << " until=" << node.until_ms
      << " settled=" << node.settled_revision << " child=" << node.child << " bytes=" << node.result_bytes
      << " compensates=" << node.is_compensation << " compensated=" << node.compensated
      << " routes=" << node.can_call_error_node << " callers=" << node.open_callers << '/' << node.possible_callers;
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
  for (std::size_t i = 0; i < run.nodes.size(); ++i) print_node_state(out, plan.nodes[i], run.nodes[i]);
  print_numbers(out, "ready", run.ready);
  print_numbers(out, "ready_own", run.ready_without_slot);
  print_numbers(out, "in_flight", run.in_flight);
  print_numbers(out, "waiting", run.waiting);
  print_numbers(out, "timers", run.timers);
  print_numbers(out, "gated", run.gated);
  print_numbers(out, "compensable", run.compensable);
  print_numbers(out, "met", run.evaluable);
  print_numbers(out, "uncalled", run.uncalled);
  print_numbers(out, "to_cancel", run.pending_cancels);
  print_numbers(out, "to_retry", run.pending_retries);
  print_numbers(out, "to_resolve", run.pending_resolutions);
  print_numbers(out, "failures", run.failures);
  print_numbers(out, "awaited", run.awaited_flows);
  print_numbers(out, "keys", run.control_digests);
  print_numbers(out, "signals", run.signals);
  print_numbers(out, "anomalies", run.anomalies);
  return out.str();
}

}  // namespace mycojobs
