// The state of a run, as its journal tells it. Pure: no clock, no store, no randomness.
//
// Node (NodeStatus, mycojobs/records.h), and the detail beside it:
//   pending    dependencies | on_call | gate (approval:NAME ...: its needs are met) | paused
//   ready      (all is met; dispatched as soon as the flow is not paused and a place is free)
//   dispatched queued (a job: readers overlay where it really is) | approval | pause | wait | flow (its child runs)
//   completed  ok | handled (failed, and its error node has taken it over) | continued (failed; on_error: continue)
//   failed     the job's detail; rejected, timeout, dependency_failed
//   cancelled  cancelled | skipped (its condition does not hold, or all that it needs was skipped) | not_needed
// Flow:
//   dispatched new --start--> started running | paused | stopping (a failure: what runs may end, nothing begins) |
//   cancelling | compensating --> finished ok | error failed, cancelled, timeout
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
};

struct RunState {
  std::uint64_t revision = 0;  // of the latest fact that was folded
  FlowStatus status = FlowStatus::dispatched;
  std::string detail = "new";
  std::string error;
  bool paused = false;      // as a whole
  bool stopping = false;    // nothing new begins but compensations
  bool cancelling = false;  // somebody wants it cancelled
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
  std::vector<std::string> anomalies;       // facts that do not fit: one line each, at most 100
};

RunState fresh(const FlowPlan&);
// Takes the next fact in. A wrong one (another kind, node, order, after the end) becomes an anomaly and changes nothing
// but the revision. Cost: of the node and its dependents, not of the flow.
void fold(const FlowPlan&, RunState&, const RunFact&);

// A checkpoint is the state as text; it may be deleted at any time. restore: nothing if it is of another format, of
// another definition, or nonsense.
std::string checkpoint(const FlowPlan&, const RunState&);
std::optional<RunState> restore(const FlowPlan&, std::string_view);

// The same state, whatever way it was reached: for tests and verify. Lines of text that differ name what differs.
std::string describe(const FlowPlan&, const RunState&);

// Kinds of facts, and what each carries in `more`: one table, which the manual repeats.
struct RunFactShape {
  std::string_view kind, carries, meaning;
  bool of_node = false;
};
std::vector<RunFactShape> run_fact_shapes();

}  // namespace mycojobs
