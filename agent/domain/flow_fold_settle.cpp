// What a node's coming into a state and out of it does to the lists of the run, and to its neighbours.
#include "domain/flow_fold.h"

namespace mycojobs::runs {

void Folding::enter(NodeStatus status, std::string detail) {
  node().status = status;
  node().detail = std::move(detail);
  node().since_ms = fact_.at_ms;
}

void Folding::leave_places() {
  NodeState& at = node();
  const std::uint32_t i = index();
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

void Folding::resolve_caller() {
  if (!node().routes) return;
  const std::uint32_t error_node = *planned().error_node;
  if (--run_.nodes[error_node].callers_open == 0 && run_.uncalled.contains(error_node)) run_.met.insert(error_node);
}

void Folding::settle() {
  const std::uint32_t i = index();
  NodeState& at = node();
  leave_places();
  at.settled = fact_.revision;
  if (run_.uncalled.erase(i) == 0) --run_.unsettled;
  run_.to_resolve.erase(i);
  for (const std::uint32_t dependent : planned().dependents) {
    NodeState& other = run_.nodes[dependent];
    const bool last = --other.open_needs == 0;
    if (last && !plan_.nodes[dependent].on_call && other.status == NodeStatus::pending) run_.met.insert(dependent);
  }
  run_.to_resolve.insert(at.called_by.begin(), at.called_by.end());
  at.called_by.clear();
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
