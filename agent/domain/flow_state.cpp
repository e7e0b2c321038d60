#include "domain/flow_state.h"

#include <algorithm>
#include <array>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/flow_fold.h"
#include "domain/flow_plan_read.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxAnomalies = 100;

using F = Folding;
constexpr std::array kRows = std::to_array<FoldRow>({
    {{"started", "trigger, actor, deadline", "the run began; deadline: when its time will be over, ms"}, &F::started},
    {{"control", "verb, target, actor, comment, key, digest, payload",
      "somebody asked for something; what came of it follows"},
     &F::control},
    {{"paused", "", "nothing new begins until it is resumed"}, &F::paused},
    {{"resumed", "", "it goes on"}, &F::resumed},
    {{"stopping", "outcome, error", "nothing new begins but compensations; outcome: how it will end"}, &F::stopping},
    {{"retried", "target, deadline", "what failed, and what did not begin because of it, is set back"}, &F::retried},
    {{"ended", "status, detail, error", "nothing follows, unless it is retried"}, &F::ended},
    {{"node_gated", "gates, until, approvers", "its needs are met; these gates are closed", true}, &F::node_gated},
    {{"gate_opened", "gate", "one of its gates is open", true}, &F::gate_opened},
    {{"node_ready", "when", "all is met; when: the conditions that hold", true}, &F::node_ready},
    {{"node_dispatched", "as, until, approvers, asks, when", "it is under way; as: the detail beside the status", true},
     &F::node_dispatched},
    {{"node_expanded", "count, values, bytes", "its elements are known; values: what conditions read", true},
     &F::node_expanded},
    {{"child_started", "flow", "its child flow runs", true}, &F::child_started},
    {{"cancel_sent", "", "its job or child was told to end", true}, &F::cancel_sent},
    {{"node_completed", "detail, error, failed, values, bytes",
      "it has settled well; values: what conditions read; failed: the detail of what was passed over", true},
     &F::node_completed},
    {{"node_failed", "detail, error, routed", "it failed; routed: its error node takes it", true}, &F::node_failed},
    {{"node_unhandled", "", "its error node did not handle its failure", true}, &F::node_unhandled},
    {{"node_cancelled", "detail, error", "it has settled without an end of its own", true}, &F::node_cancelled},
    {{"node_retried", "", "it is pending again", true}, &F::node_retried},
    {{"compensating", "by", "its compensation is called", true}, &F::compensating},
});

// A journal may hold anything: one line of a terminal, of bounded length.
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

// What nodes say of one another: open needs, callers.
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
    // A compensation that fails is told, and the next one runs: it calls nobody.
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

const FoldRow* fold_row(std::string_view kind) {
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const FoldRow& each) { return each.shape.kind == kind; });
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

bool is_unborn(const FlowPlan& plan, const RunState& run, std::uint32_t node) {
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
  if (value == values.end()) return fail(Code::invalid, what + " is absent: there is no list to take elements from");
  const auto parsed = parse_json(value->second);
  auto elements = parsed ? plans::elements_of(*parsed) : std::nullopt;
  if (!elements) return fail(Code::invalid, what + " is " + shown(value->second) + ", no list and no map");
  if (elements->size() > group.places) {
    return fail(Code::invalid, what + " has " + std::to_string(elements->size()) + " elements, more than " +
                                   std::to_string(group.places) + ": give the node a larger max (at most " +
                                   std::to_string(kMaxEach) + "), or the list fewer");
  }
  for (std::size_t i = 0; i < elements->size(); ++i) {
    if ((*elements)[i].size() <= kMaxElementBytes) continue;
    return fail(Code::invalid, what + '[' + std::to_string(i) + "] is longer than " + std::to_string(kMaxElementBytes) +
                                   " bytes: hand over where it lies");
  }
  return std::move(*elements);
}

RunState fresh(const FlowPlan& plan) {
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
    return note(run, fact, "stands after revision " + std::to_string(run.revision));
  }
  if (fact.revision != run.revision + 1) {
    note(run, fact, "follows revision " + std::to_string(run.revision) + ": what stood between is lost");
  }
  run.revision = fact.revision;
  if (const auto wrong = Folding(plan, run, fact).apply()) note(run, fact, *wrong);
}

std::vector<RunFactShape> run_fact_shapes() {
  std::vector<RunFactShape> shapes;
  for (const auto& row : kRows) shapes.push_back(row.shape);
  return shapes;
}

}  // namespace mycojobs
