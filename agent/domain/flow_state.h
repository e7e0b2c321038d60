// The state of a run, as its journal tells it. Pure: no clock, no store, no randomness.
//
// Node (NodeStatus, mycojobs/records.h), and the detail beside it:
//   pending    dependencies | on_call | gate (approval:NAME ...: its needs are met)
//   ready      (all is met; dispatched as soon as the flow is not paused and a place is free)
//   dispatched queued (a job: readers overlay where it really is) | approval | pause | wait | flow (its child runs) |
//              cancelling (its job or child was asked to end)
//   completed  ok | handled (failed, and its error node has taken it over) | continued (failed; on_error: continue)
//   failed     the job's detail; rejected, timeout, flow_failed, dependency_failed. While its error node is at work it
//              has not settled
//   cancelled  cancelled | skipped (its condition does not hold, or all that it needs was skipped) | not_needed |
//              absent (a place of an `each` that has no element: there is no such node in this run)
// Flow:
//   dispatched new --start--> started running | paused | stopping (a failure: what runs may end, nothing begins) |
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

#include "domain/flow_plan.h"
#include "mycojobs/flows.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct NodeState {
  NodeStatus status = NodeStatus::pending;
  std::string detail;
  std::string error;               // one line, once failed or skipped
  std::uint32_t open_needs = 0;    // needs that have not settled
  std::uint32_t runs = 0;          // how often it was dispatched
  std::uint64_t since_ms = 0;      // when it came into this status and detail
  std::uint64_t until_ms = 0;      // wait: its end; approval, pause, gate: its time limit; 0: none
  std::uint64_t settled = 0;       // revision of the fact that settled it: order of completion; 0: it has not
  std::vector<std::string> gates;  // that are not met yet
  TextMap values;                  // of the keys that conditions watch, and $status
  Id child = 0;                    // kind flow, once it was started
  // What was fixed when an approval was reached: who may, what approving and rejecting mean.
  std::vector<Id> approvers;
  std::uint64_t result_bytes = 0;  // of its job's result
  bool compensates = false;        // it was called as a compensation
  bool compensated = false;        // its compensation was called
  bool routes = false;             // its failure calls its error node
  // Of an error node: how many nodes can route to it, how many of them may still do so, and who did and waits for its
  // end.
  std::uint32_t callers = 0, callers_open = 0;
  std::vector<std::uint32_t> called_by;
};

// What a flow's nodes may give together as results: beyond, it ends as error, result_too_large.
inline constexpr std::uint64_t kMaxFlowResultBytes = 1U << 20;

struct RunState {
  std::uint64_t revision = 0;  // of the latest fact that was folded
  FlowStatus status = FlowStatus::dispatched;
  std::string detail = "new";
  std::string error;
  bool paused = false;        // as a whole
  bool stopping = false;      // nothing new begins but compensations
  bool cancelling = false;    // somebody wants it cancelled, or its time is over
  bool compensating = false;  // the first compensation was called: it cannot be retried any more
  std::string outcome;        // while stopping: failed, cancelled, timeout, result_too_large
  std::uint64_t started_ms = 0, ended_ms = 0;
  std::uint64_t deadline_ms = 0;  // of the flow; 0: none
  std::vector<NodeState> nodes;
  std::set<std::uint32_t> ready;                                     // in the order of the definition
  std::set<std::uint32_t> in_flight;                                 // dispatched
  std::set<std::pair<std::uint64_t, std::uint32_t>> timers;          // until_ms, node
  std::set<std::uint32_t> gated;                                     // pending with open gates
  std::vector<std::pair<std::uint64_t, std::uint32_t>> compensable;  // settled, node: completed with a compensation
  std::uint32_t unsettled = 0;                                       // nodes that are neither settled nor on call
  std::map<std::string, std::string> keys;  // idempotency keys of controls: digest of the control
  // That came, each with what it carried last (JSON, or empty): a gate signal:NAME is open from then on.
  std::map<std::string, std::string> signals;
  std::uint64_t result_bytes = 0;  // of all nodes together
  // What there is to do or to look up, kept so that no event costs a walk over the whole flow.
  std::set<std::uint32_t> met;                     // pending, and all that they wait for has settled: to be judged
  std::set<std::uint32_t> ready_own;               // ready, and take no place: log, wait, pause, approval
  std::set<std::uint32_t> waiting;                 // in flight without a job or child: wait, pause, approval
  std::set<std::uint32_t> uncalled;                // on call, not called, not settled
  std::set<std::uint32_t> to_cancel;               // in flight, to be asked to end
  std::set<std::uint32_t> to_retry;                // to be set back before anything else happens
  std::set<std::uint32_t> to_resolve;              // failed and routed, and their error node has settled
  std::set<std::uint32_t> failures;                // failed, handled by nobody: they stop the flow
  std::set<std::pair<Id, std::uint32_t>> awaited;  // children in flight, and flows that gates wait for
  std::vector<std::string> anomalies;              // facts that do not fit: one line each, at most 100
};

// A node that this run does not have, or not yet.
bool is_unborn(const FlowPlan&, const RunState&, std::uint32_t node);
// The elements of a node of kind each, as JSON texts: of a list that is known, or that its source has handed back.
// Error invalid says why there are none.
Result<std::vector<std::string>> elements_of(const FlowPlan&, const RunState&, std::uint32_t node);

RunState fresh(const FlowPlan&);
// Takes the next fact in. A wrong one (another kind, node, order, after the end) becomes an anomaly and changes nothing
// but the revision. Cost: of the node and its dependents, not of the flow.
void fold(const FlowPlan&, RunState&, const RunFact&);

// A checkpoint is the state as text; it may be deleted at any time. restore: nothing if it is of another format, of
// another definition, or nonsense.
std::string checkpoint(const FlowPlan&, const RunState&);
std::optional<RunState> restore(const FlowPlan&, std::string_view);

// The same state, whatever way it was reached: for tests and verify. Lines of text that differ name what differs.
// Without since_ms, started_ms and ended_ms: they are the store's stamps, and decide nothing.
std::string describe(const FlowPlan&, const RunState&);

// Kinds of facts, and what each carries in `more`: one table, which the manual repeats.
struct RunFactShape {
  std::string_view kind, carries, meaning;
  bool of_node = false;
};
std::vector<RunFactShape> run_fact_shapes();

}  // namespace mycojobs
