// Facts of one node.
#include <algorithm>

#include "domain/flow_fold.h"
#include "domain/transitions.h"

namespace mycojobs::runs {
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

// The end of a node that is under way, or of a job that one is: by way of `running`, which only readers see.
std::optional<NodeStatus> end_of(NodeStatus from, NodeEvent event) {
  if (from == NodeStatus::dispatched) from = *advance(from, NodeEvent::start);
  return advance(from, event);
}

}  // namespace

Folding::Verdict Folding::node_gated() {
  const auto gates = texts(more_, "gates");
  if (!run_.met.contains(index()) || !called() || node().detail == "gate") return wrong_here();
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

Folding::Verdict Folding::gate_opened() {
  NodeState& at = node();
  const std::string gate = text("gate");
  const auto found = std::find(at.gates.begin(), at.gates.end(), gate);
  if (found == at.gates.end()) return wrong_here();
  at.gates.erase(std::remove(at.gates.begin(), at.gates.end(), gate), at.gates.end());
  if (const Id flow = awaited_by(gate)) run_.awaited.erase({flow, index()});
  if (!at.gates.empty()) return std::nullopt;
  run_.gated.erase(index());
  if (at.until_ms != 0) run_.timers.erase({at.until_ms, index()});
  at.until_ms = 0;
  run_.met.insert(index());
  return std::nullopt;
}

Folding::Verdict Folding::node_ready() {
  const auto to = advance(node().status, NodeEvent::dependencies_met);
  if (!to || !run_.met.contains(index()) || !called()) return wrong_here();
  run_.met.erase(index());
  enter(*to, "");
  run_.ready.insert(index());
  if (is_own(planned().kind)) run_.ready_own.insert(index());
  return std::nullopt;
}

Folding::Verdict Folding::node_dispatched() {
  NodeState& at = node();
  if (planned().kind == NodeKind::each) return "is of a node that is only expanded";
  if (at.status == NodeStatus::pending && (!run_.met.contains(index()) || !called())) return wrong_here();
  const auto ready = at.status == NodeStatus::pending ? advance(at.status, NodeEvent::dependencies_met) : at.status;
  const auto to = advance(*ready, NodeEvent::dispatch);
  if (!to || run_.status != FlowStatus::started || (run_.stopping && !at.compensates)) return wrong_here();
  const std::string as = text("as");
  if (as != (planned().kind == NodeKind::job ? "queued" : word(planned().kind)))
    return "is under way as something else";
  leave_places(index());
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

Folding::Verdict Folding::node_expanded() {
  NodeState& at = node();
  const std::uint64_t count = number("count");
  const bool open = at.status == NodeStatus::pending ? run_.met.contains(index()) : at.status == NodeStatus::ready;
  if (planned().kind != NodeKind::each || at.settled != 0 || !open || !called()) return wrong_here();
  if (run_.status != FlowStatus::started || run_.stopping) return wrong_here();
  if (count > planned().places) return "has more elements than places";
  enter(NodeStatus::completed, "ok");
  ++at.runs;
  at.error.clear();
  at.values.clear();
  take_values();
  at.values["$status"] = "finished";
  at.result_bytes = number("bytes");
  run_.result_bytes += at.result_bytes;
  settle_absent(index(), static_cast<std::uint32_t>(count));
  settle(index());
  resolve_caller(index());
  return std::nullopt;
}

Folding::Verdict Folding::child_started() {
  const std::uint64_t flow = number("flow");
  if (planned().kind != NodeKind::flow || node().status != NodeStatus::dispatched || node().child != 0) {
    return wrong_here();
  }
  if (flow == 0 || flow > UINT32_MAX) return "names no flow";
  node().child = static_cast<Id>(flow);
  run_.awaited.emplace(node().child, index());
  if (run_.cancelling && !node().compensates) run_.to_cancel.insert(index());
  return std::nullopt;
}

Folding::Verdict Folding::cancel_sent() {
  if (run_.to_cancel.erase(index()) == 0) return wrong_here();
  enter(node().status, "cancelling");
  return std::nullopt;
}

Folding::Verdict Folding::node_completed() {
  NodeState& at = node();
  const std::string detail = text("detail");
  if (at.settled != 0) return wrong_here();
  if (detail == "handled") {
    if (!run_.to_resolve.contains(index())) return wrong_here();
    enter(*advance(at.status, NodeEvent::handle), detail);
    settle(index());
    return std::nullopt;
  }
  const bool continued = detail == "continued";
  if (!continued && detail != "ok") return "names no detail of a completed node";
  const auto to = end_of(at.status, continued ? NodeEvent::fail : NodeEvent::complete);
  if (!to || !called()) return wrong_here();
  enter(continued ? *advance(*to, NodeEvent::handle) : *to, detail);
  at.error = text("error");
  at.values.clear();
  take_values();
  at.values["$status"] = continued ? "error" : "finished";
  at.result_bytes = number("bytes");
  run_.result_bytes += at.result_bytes;
  settle(index());
  resolve_caller(index());
  if (!continued && planned().compensation && !at.compensates) run_.compensable.emplace_back(at.settled, index());
  return std::nullopt;
}

Folding::Verdict Folding::node_failed() {
  NodeState& at = node();
  const auto to = end_of(at.status, NodeEvent::fail);
  if (!to || !called()) return wrong_here();
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
  leave_places(index());
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

Folding::Verdict Folding::node_unhandled() {
  if (!run_.to_resolve.contains(index())) return wrong_here();
  settle(index());
  run_.failures.insert(index());
  return std::nullopt;
}

Folding::Verdict Folding::node_cancelled() {
  const auto to = advance(node().status, NodeEvent::cancel);
  if (!to) return wrong_here();
  const std::string detail = text("detail");
  if (detail != "cancelled" && detail != "skipped" && detail != "not_needed") return "names no reason";
  enter(*to, detail);
  node().error = text("error");
  node().values = {{"$status", detail}};
  settle(index());
  resolve_caller(index());
  return std::nullopt;
}

Folding::Verdict Folding::node_retried() {
  const auto to = advance(node().status, NodeEvent::retry);
  const std::uint32_t i = index();
  if (!to || !run_.to_retry.contains(i) || node().settled == 0) return wrong_here();
  run_.to_retry.erase(i);
  run_.failures.erase(i);
  reopen(i);
  if (planned().kind == NodeKind::each) reopen_absent(i);
  return std::nullopt;
}

Folding::Verdict Folding::compensating() {
  if (!run_.stopping || run_.compensable.empty() || run_.compensable.back().second != index()) return wrong_here();
  if (run_.unsettled != 0 || run_.status != FlowStatus::started) return wrong_here();
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

}  // namespace mycojobs::runs
