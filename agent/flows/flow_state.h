// The state of a run, computed from the facts of its journal. Pure: no clock, no store, no randomness.
//
// Status of a node (NodeStatus, model/records.h) and its detail:
//   pending    dependencies | on_call | gate (its needs are met; it waits for gates such as approval:NAME)
//   ready      (all conditions are met; dispatched when the flow is not paused and a slot of max_parallel is free)
//   dispatched queued (a job: readers show its real status) | approval | pause | wait | flow (its child runs) |
//              cancelling (the end of its job or child was requested)
//   completed  ok | handled (failed, and its error node has completed) | continued (failed; on_error: continue)
//   failed     the job's detail; rejected, timeout, flow_failed, dependency_failed. Not settled while its error node
//              runs
//   cancelled  cancelled | skipped (a condition does not hold, or all its needs were skipped) | not_needed |
//              absent (an element node without an element: the run does not have this node)
// Status of the flow:
//   dispatched new --start--> started running | paused | stopping (a failure: running nodes may end, no node starts) |
//   cancelling | compensating --> finished ok | error failed, cancelled, timeout, result_too_large
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "flows/flow_plan.h"
#include "model/records.h"
#include "store/flow_store.h"

namespace mycojobs {

struct NodeState {
  NodeStatus status = NodeStatus::pending;
  std::string detail;
  std::string error;             // one line, if failed or skipped
  std::uint32_t open_needs = 0;  // number of needs that have not settled
  std::uint32_t runs = 0;        // number of dispatches
  std::uint64_t since_ms = 0;    // time at which the node got this status and detail
  std::uint64_t until_ms = 0;    // end of a wait, or time limit of an approval, pause or gate; 0 if there is none
  // Revision of the fact that settled the node, which gives the order of completion. 0 if the node has not settled.
  std::uint64_t settled_revision = 0;
  std::vector<std::string> gates;  // gates that are not met yet
  TextMap values;                  // values of the keys that conditions watch, and $status
  Id child = 0;                    // for kind flow, once the child was started
  // The approvers as they were when the approval or gate was reached.
  std::vector<Id> approvers;
  std::uint64_t result_bytes = 0;    // size of its job's result
  bool is_compensation = false;      // called as a compensation
  bool compensated = false;          // its compensation was called
  bool can_call_error_node = false;  // its failure calls its error node
  // These members are set for an error node: the number of nodes that can route a failure to it, how many of these
  // nodes have not ended yet, and the nodes that have routed a failure to it and wait for its end.
  std::uint32_t possible_callers = 0, open_callers = 0;
  std::vector<std::uint32_t> called_by;
};

// Maximum size of all results of a flow's nodes. A flow beyond it ends as error, result_too_large.
inline constexpr std::uint64_t kMaxFlowResultBytes = 1U << 20;

struct RunState {
  std::uint64_t revision = 0;  // revision of the latest folded fact
  FlowStatus status = FlowStatus::dispatched;
  std::string detail = "new";
  std::string error;
  bool paused = false;        // the whole flow is paused
  bool stopping = false;      // no node starts, except compensations
  bool cancelling = false;    // cancelled on request or by its time limit
  bool compensating = false;  // the first compensation was called; a retry is not possible any more
  std::string outcome;        // while stopping: failed, cancelled, timeout, result_too_large
  std::uint64_t started_ms = 0, ended_ms = 0;
  std::uint64_t deadline_ms = 0;  // deadline of the flow; 0 if there is none
  std::vector<NodeState> nodes;
  std::set<std::uint32_t> ready;                             // in the order of the definition
  std::set<std::uint32_t> in_flight;                         // dispatched
  std::set<std::pair<std::uint64_t, std::uint32_t>> timers;  // (until_ms, node)
  std::set<std::uint32_t> gated;                             // pending, waiting for gates
  // (settled, node): completed nodes with a compensation.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> compensable;
  std::uint32_t unsettled = 0;                         // number of nodes that are neither settled nor on call
  std::map<std::string, std::string> control_digests;  // by the idempotency key of the control
  // Received signals, with the last payload (JSON or empty). A received signal keeps every gate signal:NAME open.
  std::map<std::string, std::string> signals;
  std::uint64_t result_bytes = 0;  // size of the results of all nodes
  // Indexes of pending work, so that an event does not need a scan of the whole flow.
  std::set<std::uint32_t> evaluable;                     // pending, and all needs have settled
  std::set<std::uint32_t> ready_without_slot;            // ready, and need no slot: log, wait, pause, approval
  std::set<std::uint32_t> waiting;                       // in flight without a job or child: wait, pause, approval
  std::set<std::uint32_t> uncalled;                      // on call, not called, not settled
  std::set<std::uint32_t> pending_cancels;               // in flight; their end is to be requested
  std::set<std::uint32_t> pending_retries;               // to be reset before any other action
  std::set<std::uint32_t> pending_resolutions;           // failed and routed to an error node that has settled
  std::set<std::uint32_t> failures;                      // failed without an error node that handles it: stop the flow
  std::set<std::pair<Id, std::uint32_t>> awaited_flows;  // children in flight, and flows that gates wait for
  std::vector<std::string> anomalies;                    // invalid facts: one line each, at most 100
};

// Returns whether the run does not have this node, or does not have it yet.
bool has_not_started(const FlowPlan&, const RunState&, std::uint32_t node);
// Returns the elements of a node of kind each as JSON texts, from its literal list or from its source's result. Error
// invalid: the elements are missing or too large; the message has the reason.
Result<std::vector<std::string>> get_elements(const FlowPlan&, const RunState&, std::uint32_t node);

// Returns the state before the first fact.
RunState initial_state(const FlowPlan&);
// Applies the next fact. An invalid fact (unknown kind or node, wrong order, after the end) becomes an anomaly and
// changes only the revision. The cost depends on the node and its dependents, not on the size of the flow.
void fold(const FlowPlan&, RunState&, const RunFact&);

// A checkpoint is the state as text. It may be deleted at any time. restore() returns no value if the text has another
// format, belongs to another definition, or is damaged.
std::string checkpoint(const FlowPlan&, const RunState&);
std::optional<RunState> restore(const FlowPlan&, std::string_view);

// Returns the state as text for tests and verify. Equal states have equal texts, whether they were folded or restored.
// Omits since_ms, started_ms and ended_ms, which come from the store's clock and do not affect decisions.
std::string describe(const FlowPlan&, const RunState&);

// The kinds of facts, and the fields that each kind has in RunFact::data_json. The manual repeats this table.
struct RunFactShape {
  std::string_view kind, fields, meaning;
  bool has_node = false;
};
std::vector<RunFactShape> run_fact_shapes();

}  // namespace mycojobs
