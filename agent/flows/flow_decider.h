// Decides the next actions of a flow: decide(state, event) -> state', facts, effects. Pure: the current time is part of
// the event. Nothing else changes the state of a flow, neither live nor in recovery; flows/flow_progress.h supplies
// the events. An event may be repeated, late, or no longer applicable: then there are no facts, and a control returns
// error conflict.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "flows/flow_plan.h"
#include "flows/flow_state.h"

namespace mycojobs {

struct StartRun {
  std::string trigger;  // manual, rpc, schedule:<name>, flow:<id>, replay:<id>
  Id actor = 0;
};
// The state of a node's job, reported live or found by recovery. A job that has not ended changes nothing.
struct JobObserved {
  std::uint32_t node = 0;
  bool ended = false;
  std::string status, detail, error;  // as in the record, once it has ended
  TextMap values;                     // values of the node's watched keys that the result has
  std::uint64_t result_bytes = 0;     // size of all keys and values of the result, counted towards kMaxFlowResultBytes
};
struct ChildStarted {
  std::uint32_t node = 0;
  Id flow = 0;
  std::string error = {};  // if `flow` is 0: the reason why the child could not be created
};
// The end of a child, or of a flow that a gate waits for. Also reported if that flow does not exist.
struct FlowObserved {
  Id flow = 0;
  FlowStatus status = FlowStatus::error;
  std::string error;
  TextMap result;
  std::vector<std::string> result_json = {};
};
struct TimePassed {};
inline constexpr std::size_t kMaxSignalPayload = 64U << 10;

struct FlowControl {
  // Targets: pause, resume [NODE]; approve, reject NODE or approval name; signal NAME; cancel; retry [NODE].
  enum class Verb { pause, resume, approve, reject, signal, cancel, retry };
  Verb verb = Verb::pause;
  std::string target;  // name of a node, approval or signal; empty for the whole flow
  Id actor = 0;
  bool admin = false;   // the actor is an admin of the context
  std::string comment;  // at most 4096 bytes
  // Idempotency key. The same key with the same control has no further effect; with another control it is a conflict.
  std::string key;
  std::string payload;  // for signal: JSON, at most 64 KiB
  // Whether the actor may control the flow. Otherwise it may only approve and reject nodes that name it as approver.
  bool can_steer = true;
};
std::string_view to_string(FlowControl::Verb);
// Returns whether a node of the plan names this actor as approver.
bool has_approver(const FlowPlan&, Id actor);

struct FlowEvent {
  std::uint64_t now_ms = 0;
  std::variant<StartRun, JobObserved, ChildStarted, FlowObserved, TimePassed, FlowControl> body;
};

// An action that the caller must perform in the same commit as the facts. Effects on child flows are performed after
// the commit, and repeated until they have succeeded.
struct Effect {
  enum class Kind {
    dispatch,  // queue the node's job
    // End the job as finished, for a node that the flow runs itself. The result is `values`.
    finish,
    fail,         // end the job as error, with detail and error
    cancel_job,   // request the end of the job
    requeue,      // queue the job again, as the next attempt
    replan,       // the job was ended by `fail` and becomes planned again
    start_child,  // create and start the child flow; ChildStarted reports the result
    cancel_child,
    await_flow,  // register for the end of `flow`, which opens a gate flow:ID
  };
  Kind kind = Kind::dispatch;
  std::uint32_t node = 0;
  std::string detail, error;
  TextMap values;
  Id flow = 0;
  std::vector<std::string> values_json = {};  // keys of `values` whose text is JSON
};

struct Decision {
  RunState state;
  std::vector<RunFact> facts;  // revisions start after the revision of the given state
  std::vector<Effect> effects;
};

struct DecideLimits {
  std::uint32_t max_facts = 500;     // limit per commit; the rest follows immediately (has_immediate_action())
  std::size_t max_bytes = 1U << 20;  // limit per commit for the records of dispatched element nodes (EachSource)
};

// Errors conflict, denied, not_found: only for controls; the state is then unchanged. Error invalid: a malformed
// control.
Result<Decision> decide(const FlowPlan&, RunState, const FlowEvent&, const DecideLimits& = {});
// Returns the size of all keys and values of a result, which counts towards kMaxFlowResultBytes.
std::uint64_t result_bytes(const TextMap&);
// Returns the approximate size of the record of an element node's job, which is part of the commit that dispatches it.
std::size_t estimate_element_bytes(const FlowPlan&, std::uint32_t node);
// Returns whether the flow can progress without an event.
bool has_immediate_action(const FlowPlan&, const RunState&);
// Returns the effects outside of the commits that must be in place now: start_child, cancel_child, await_flow. Recovery
// repeats them.
std::vector<Effect> pending_child_actions(const FlowPlan&, const RunState&);
// Returns the next time at which the passing of time changes the state, or 0 if there is none.
std::uint64_t next_timer_ms(const RunState&);

}  // namespace mycojobs
