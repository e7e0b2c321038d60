// How a fact changes the state of a run (flow_state.cpp). Only flow_state.cpp and flow_decide.cpp need it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "domain/flow_state.h"

namespace mycojobs {

// A node that the flow runs itself and that takes no place beside jobs.
constexpr bool is_own(NodeKind kind) { return kind != NodeKind::job && kind != NodeKind::flow; }
// The flow that a gate flow:ID waits for; 0: it is another gate.
Id awaited_by(std::string_view gate);
// Fills all that follows from the nodes' states and the flow's flags.
void index_run(const FlowPlan&, RunState&);
// The word beside the flow's status while it has not ended.
std::string detail_of(const RunState&);

class Folding {
 public:
  Folding(const FlowPlan& plan, RunState& run, const RunFact& fact) : plan_(plan), run_(run), fact_(fact) {}
  // What is wrong with it, and then nothing was changed.
  std::optional<std::string> apply();

  using Verdict = std::optional<std::string>;
  using Step = Verdict (Folding::*)();
  // Of the flow
  Verdict started();
  Verdict control();
  Verdict paused();
  Verdict resumed();
  Verdict stopping();
  Verdict retried();
  Verdict ended();
  // Of a node
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

  Verdict wrong_here() const;  // not possible from where the node or the flow is
  bool called() const { return !run_.uncalled.contains(index()); }
  void enter(NodeStatus, std::string detail);
  void leave_places(std::uint32_t i);  // every list that it stands in because it is under way
  void settle(std::uint32_t i);        // status and detail are set: dependents, callers and lists follow
  void resolve_caller(std::uint32_t i);
  void reopen(std::uint32_t i);                                 // settled -> pending, as if it had never begun
  void settle_absent(std::uint32_t each, std::uint32_t count);  // its places without an element
  void reopen_absent(std::uint32_t each);
  void call(std::uint32_t on_call_node);
  void take_values();
  void collect_retries();
  void refresh_detail() { run_.detail = detail_of(run_); }

  const FlowPlan& plan_;
  RunState& run_;
  const RunFact& fact_;
  nlohmann::json more_;
};

struct FoldRow {
  RunFactShape shape;
  Folding::Step step;
};
// The table of facts; nullptr: there is no such kind.
const FoldRow* fold_row(std::string_view kind);

}  // namespace mycojobs
