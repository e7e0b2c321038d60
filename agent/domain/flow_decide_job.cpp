// What jobs, children, other flows and time say.
#include "domain/flow_decide_run.h"
#include "domain/flow_fold.h"
#include "domain/transitions.h"

namespace mycojobs::runs {

void Deciding::start(const StartRun& start) {
  if (run().status != FlowStatus::dispatched || run().stopping) return;
  Json more{{"trigger", start.trigger}};
  if (start.actor != 0) more["actor"] = start.actor;
  if (plan_.timeout_ms != 0) more["deadline"] = now_ + plan_.timeout_ms;
  emit("started", std::nullopt, more);
}

void Deciding::job(const JobSeen& seen) {
  if (!seen.ended || !in_flight(seen.node) || planned(seen.node).kind != NodeKind::job) return;
  if (seen.status == word(JobStatus::finished)) return complete(seen.node, seen.values, true, seen.result_bytes);
  const bool wished = run().cancelling && !node(seen.node).compensates;
  if (wished && seen.detail == "cancelled") return cancel_node(seen.node, "cancelled", seen.error, true);
  fail_node(seen.node, seen.detail.empty() ? "error" : seen.detail, seen.error, true);
}

void Deciding::child(const ChildStarted& started) {
  if (started.node >= plan_.nodes.size() || planned(started.node).kind != NodeKind::flow) return;
  if (started.flow == 0) {
    const bool awaits = in_flight(started.node) && node(started.node).child == 0 && !started.error.empty();
    if (awaits) fail_node(started.node, "flow_failed", started.error, false);
    return;
  }
  if (in_flight(started.node) && node(started.node).child == 0) {
    return emit("child_started", started.node, {{"flow", started.flow}});
  }
  if (in_flight(started.node) || node(started.node).child == started.flow) return;
  // Its node has settled without it: nobody waits for this child.
  effect(Effect::Kind::cancel_child, started.node);
  out_.effects.back().flow = started.flow;
}

void Deciding::flow(const FlowSeen& seen) {
  if (!is_terminal(seen.status) || seen.flow == 0) return;
  std::vector<std::uint32_t> waiting;
  for (auto it = run().awaited.lower_bound({seen.flow, 0}); it != run().awaited.end() && it->first == seen.flow; ++it) {
    waiting.push_back(it->second);
  }
  const bool good = seen.status == FlowStatus::finished;
  const std::string error = "flow " + std::to_string(seen.flow) + ": " + (seen.error.empty() ? "failed" : seen.error);
  for (const std::uint32_t i : waiting) {
    if (!in_flight(i)) {
      const auto gates = node(i).gates;
      for (const std::string& gate : gates) {
        if (good && awaited_by(gate) == seen.flow) open_gate(i, gate);
      }
      if (!good) fail_node(i, "flow_failed", error, false);
    } else if (good) {
      complete(i, seen.result, false, bytes_of(seen.result));
      out_.effects.back().values_json = seen.result_json;
    } else if (run().cancelling && !node(i).compensates) {
      cancel_node(i, "cancelled", error, false);
    } else {
      fail_node(i, "flow_failed", error, false);
    }
  }
}

void Deciding::check_deadline() {
  const RunState& now = run();
  if (now.deadline_ms == 0 || now_ < now.deadline_ms || now.cancelling || now.compensating) return;
  stop("timeout", "its time was over (timeout)");
}

void Deciding::time() {
  if (!under_way()) return;
  check_deadline();
  while (!full() && !run().timers.empty() && run().timers.begin()->first <= now_) {
    const std::uint32_t i = run().timers.begin()->second;
    const NodeState& at = node(i);
    if (at.status == NodeStatus::dispatched && planned(i).kind == NodeKind::wait) {
      complete(i, {}, false, 0);
      continue;
    }
    std::string waited_for = planned(i).kind == NodeKind::pause ? "resume" : "approval";
    if (at.status == NodeStatus::pending) waited_for = at.gates.front();
    fail_node(i, "timeout", "waited too long for " + waited_for, false);
  }
}

}  // namespace mycojobs::runs
