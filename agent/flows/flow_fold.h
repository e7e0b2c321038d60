// Applies a fact to the state of a run (flow_state.cpp). Only flow_state.cpp and flow_decider.cpp include this file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "flows/flow_state.h"

namespace mycojobs {

// Returns whether the flow runs the node itself. Such a node needs no slot of max_parallel.
constexpr bool is_run_by_flow(NodeKind kind) { return kind != NodeKind::job && kind != NodeKind::flow; }
// Returns the flow that a gate flow:ID waits for, or 0 for any other gate.
Id parse_flow_gate(std::string_view gate);
// Computes every field that follows from the states of the nodes and the flags of the flow.
void rebuild_indexes(const FlowPlan&, RunState&);
// Returns RunState::detail of a flow that has not ended: one word that names its phase, such as "running" or "paused".
std::string compute_detail(const RunState&);

// Applies one fact to the state of a run. An on-call node is an error node or a compensation: it starts only after a
// failed node has called it. A node is evaluable if it is pending and all its needs have settled.
class FlowFactApplier {
 public:
  FlowFactApplier(const FlowPlan& plan, RunState& run, const RunFact& fact) : plan_(plan), run_(run), fact_(fact) {}
  // Returns the reason why the fact is invalid; the state is then unchanged.
  std::optional<std::string> apply();

  using Rejection = std::optional<std::string>;
  using Handler = Rejection (FlowFactApplier::*)();
  // Each function below handles one kind of fact and returns the reason if the fact is invalid in the current state.
  // Facts of the flow.
  Rejection on_started();
  Rejection on_control();
  Rejection on_paused();
  Rejection on_resumed();
  Rejection on_stopping();
  Rejection on_retried();
  Rejection on_ended();
  // Facts of a node.
  Rejection on_node_gated();
  Rejection on_gate_opened();
  Rejection on_node_ready();
  Rejection on_node_dispatched();
  Rejection on_node_expanded();
  Rejection on_child_started();
  Rejection on_cancel_sent();
  Rejection on_node_completed();
  Rejection on_node_failed();
  Rejection on_node_unhandled();
  Rejection on_node_cancelled();
  Rejection on_node_retried();
  Rejection on_compensating();

 private:
  std::uint32_t node_index() const { return *fact_.node; }
  const PlanNode& plan_node() const { return plan_node(node_index()); }
  const PlanNode& plan_node(std::uint32_t index) const { return plan_.nodes[index]; }
  NodeState& node() { return run_.nodes[node_index()]; }
  std::string get_text(std::string_view name) const;
  std::uint64_t get_number(std::string_view name) const;
  bool get_flag(std::string_view name) const;

  Rejection reject_fact() const;  // the fact is not possible in the current state of the node or flow
  // Returns false only if the node of the fact is on call, and has neither been called nor settled.
  bool is_called() const { return !run_.uncalled.contains(node_index()); }
  void set_status(NodeStatus, std::string detail);
  // Removes the node from every list of nodes that wait or are in flight.
  void remove_from_indexes(std::uint32_t index);
  // Updates dependents, callers and lists after the end of a node. REQUIRES: status and detail are set.
  void settle_node(std::uint32_t index);
  // Updates the error node after the end of a node that routes errors to it. An error node that was not called becomes
  // evaluable after the last such end.
  void resolve_caller(std::uint32_t index);
  // Resets a settled node to pending, as if it had never started.
  void reopen_node(std::uint32_t index);
  // Settles the element nodes of each_node that have no element: all but the first `count`.
  void settle_absent_elements(std::uint32_t each_node, std::uint32_t count);
  void reopen_absent_elements(std::uint32_t each_node);
  void call_node(
      std::uint32_t on_call_node);  // makes an on-call node evaluable; no effect after it was called or settled
  void apply_result_values();       // copies the values of the fact to the node
  void collect_nodes_to_retry();    // fills RunState::pending_retries
  void update_detail() { run_.detail = compute_detail(run_); }

  const FlowPlan& plan_;
  RunState& run_;
  const RunFact& fact_;
  nlohmann::json fact_details_;  // JSON object of the fact; empty if the fact has no data
};

struct FlowFactHandler {
  RunFactShape shape;
  FlowFactApplier::Handler handler;
};
// Returns the row of a kind of fact, or nullptr for an unknown kind.
const FlowFactHandler* find_flow_fact_handler(std::string_view kind);

}  // namespace mycojobs
