// Applies a fact to the state of a run (flow_state.cpp). Only flow_state.cpp and flow_decider.cpp include this file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "flows/flow_state.h"

namespace mycojobs {

// Returns whether the flow runs the node itself. Such a node needs no slot of max_parallel.
constexpr bool is_own(NodeKind kind) { return kind != NodeKind::job && kind != NodeKind::flow; }
// Returns the flow that a gate flow:ID waits for, or 0 for any other gate.
Id awaited_by(std::string_view gate);
// Computes every field that follows from the states of the nodes and the flags of the flow.
void index_run(const FlowPlan&, RunState&);
// Returns the detail of a flow that has not ended.
std::string detail_of(const RunState&);

class FlowFold {
 public:
  FlowFold(const FlowPlan& plan, RunState& run, const RunFact& fact) : plan_(plan), run_(run), fact_(fact) {}
  // Returns the reason why the fact is invalid; the state is then unchanged.
  std::optional<std::string> apply();

  using Verdict = std::optional<std::string>;
  using Step = Verdict (FlowFold::*)();
  // Facts of the flow.
  Verdict started();
  Verdict control();
  Verdict paused();
  Verdict resumed();
  Verdict stopping();
  Verdict retried();
  Verdict ended();
  // Facts of a node.
  Verdict node_gated();
  Verdict gate_opened();
  Verdict node_ready();
  Verdict node_dispatched();
  Verdict node_expanded();
  Verdict child_started();
  Verdict cancel_sent();
  Verdict node_completed();
  Verdict node_failed();
  Verdict node_unhandled();
  Verdict node_cancelled();
  Verdict node_retried();
  Verdict compensating();

 private:
  std::uint32_t index() const { return *fact_.node; }
  const PlanNode& planned() const { return planned(index()); }
  const PlanNode& planned(std::uint32_t i) const { return plan_.nodes[i]; }
  NodeState& node() { return run_.nodes[index()]; }
  std::string text(std::string_view name) const;
  std::uint64_t number(std::string_view name) const;
  bool flag(std::string_view name) const;

  Verdict reject_fact() const;  // the fact is not possible in the current state of the node or flow
  bool called() const { return !run_.uncalled.contains(index()); }
  void enter(NodeStatus, std::string detail);
  void remove_elements(std::uint32_t i);  // removes node i from every list of nodes that wait or are in flight
  void settle(std::uint32_t i);           // status and detail are set; updates dependents, callers and lists
  void resolve_caller(std::uint32_t i);
  void reopen(std::uint32_t i);  // from settled to pending, as if the node had never started
  void settle_absent(std::uint32_t each, std::uint32_t count);  // settles the nodes of `each` without an element
  void reopen_absent(std::uint32_t each);
  void call(std::uint32_t on_call_node);
  void read_results();
  void collect_retries();
  void refresh_detail() { run_.detail = detail_of(run_); }

  const FlowPlan& plan_;
  RunState& run_;
  const RunFact& fact_;
  nlohmann::json more_;
};

struct FlowFoldHandler {
  RunFactShape shape;
  FlowFold::Step step;
};
// Returns the row of a kind of fact, or nullptr for an unknown kind.
const FlowFoldHandler* fold_row(std::string_view kind);

}  // namespace mycojobs
