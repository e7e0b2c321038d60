// What a node's coming into a state and out of it does to the lists of the run, and to its neighbours.
#include "domain/flow_fold.h"

namespace mycojobs::runs {

void Folding::enter(NodeStatus status, std::string detail) {
  node().status = status;
  node().detail = std::move(detail);
  node().since_ms = fact_.at_ms;
}

void Folding::leave_places(std::uint32_t i) {
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

void Folding::resolve_caller(std::uint32_t i) {
  if (!run_.nodes[i].routes) return;
  const std::uint32_t error_node = *planned(i).error_node;
  if (--run_.nodes[error_node].callers_open == 0 && run_.uncalled.contains(error_node)) run_.met.insert(error_node);
}

void Folding::settle(std::uint32_t i) {
  NodeState& at = run_.nodes[i];
  leave_places(i);
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

// They settle with what they belong to: a place that nothing was put in has no life of its own.
void Folding::settle_absent(std::uint32_t each, std::uint32_t count) {
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

void Folding::reopen_absent(std::uint32_t each) {
  for (std::uint32_t i = each + 1; i <= each + planned(each).places; ++i) {
    if (run_.nodes[i].settled != 0 && run_.nodes[i].detail == "absent") reopen(i);
  }
}

void Folding::reopen(std::uint32_t i) {
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

void Folding::call(std::uint32_t on_call_node) {
  if (run_.uncalled.erase(on_call_node) == 0) return;
  ++run_.unsettled;
  run_.nodes[on_call_node].detail = "dependencies";
  run_.nodes[on_call_node].since_ms = fact_.at_ms;
  run_.met.insert(on_call_node);
}

void Folding::take_values() {
  const auto found = more_.find("values");
  if (found == more_.end() || !found->is_object()) return;
  for (const auto& item : found->items()) {
    if (item.value().is_string()) node().values[item.key()] = item.value().get<std::string>();
  }
}

}  // namespace mycojobs::runs
