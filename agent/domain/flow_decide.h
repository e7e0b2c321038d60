// What follows: decide(state, event) -> state', facts, effects. Pure: what time it is comes with the event. Nothing
// else moves a flow on, live or after a crash: coordinator/progress.h feeds it.
//
// Every event may come twice, late, or not fit any more: then there are no facts, and a control says why (Error
// conflict).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct StartRun {
  std::string trigger;  // manual, rpc, schedule:<name>, flow:<id>, replay:<id>
  Id actor = 0;
};
// How a node's job stands: live, or found by recovery. One that has not ended changes nothing.
struct JobSeen {
  std::uint32_t node = 0;
  bool ended = false;
  std::string status, detail, error;  // as on the record, once ended
  TextMap values;                     // of the node's watched keys; those that the result lacks are absent
  std::uint64_t result_bytes = 0;     // of all its keys and values: against kMaxFlowResultBytes
};
struct ChildStarted {
  std::uint32_t node = 0;
  Id flow = 0;
  std::string error = {};  // with flow 0: why there can be none
};
struct FlowSeen {  // a child, or a flow that a gate waits for, has ended, or is not there
  Id flow = 0;
  FlowStatus status = FlowStatus::error;
  std::string error;
  TextMap result;
  std::vector<std::string> result_json = {};
};
struct TimePassed {};
inline constexpr std::size_t kMaxSignalPayload = 64U << 10;

struct FlowControl {
  // pause, resume [node], approve NODE or approval name, reject NODE or name, signal NAME, cancel, retry [NODE]
  enum class Verb { pause, resume, approve, reject, signal, cancel, retry };
  Verb verb = Verb::pause;
  std::string target;  // a node's name, an approval's or signal's; empty: the flow
  Id actor = 0;
  bool admin = false;   // of the context
  std::string comment;  // at most 4096 bytes
  std::string key;      // idempotency: the same key with the same control again changes nothing; with another: conflict
  std::string payload;  // signal: JSON, at most 64 KiB
  bool steers = true;   // may steer the flow; false: may only approve and reject what names it as approver
};
std::string_view word(FlowControl::Verb);
// Whether a step of it names this actor among those who may answer.
bool names_approver(const FlowPlan&, Id actor);

struct FlowEvent {
  std::uint64_t now_ms = 0;
  std::variant<StartRun, JobSeen, ChildStarted, FlowSeen, TimePassed, FlowControl> what;
};

// What the caller must bring about, in the same commit as the facts; those with a child afterwards, and again until it
// is so.
struct Effect {
  enum class Kind {
    dispatch,     // queue the node's job
    finish,       // end its job as finished: a node that the flow runs itself (result: `values`)
    fail,         // end its job as error, with detail and error
    cancel_job,   // ask for its end
    requeue,      // its job again, as the next attempt
    replan,       // its job was ended by `fail` and waits again
    start_child,  // create and start the child flow; then ChildStarted
    cancel_child,
    await_flow,  // a gate flow:ID opens when `flow` ends
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
  std::vector<RunFact> facts;  // revisions follow the state's; kind, node, more
  std::vector<Effect> effects;
};

struct DecideLimits {
  std::uint32_t max_facts = 500;     // one commit is bounded; what is left over follows at once (more_to_do)
  std::size_t max_bytes = 1U << 20;  // likewise: of places that are dispatched, whose records a commit writes
};

// error conflict, denied or not_found: only of controls; the state is then as it was.
Result<Decision> decide(const FlowPlan&, RunState, const FlowEvent&, const DecideLimits& = {});
// What the record of a place's job takes, about: a commit that dispatches it writes it.
std::size_t place_bytes(const FlowPlan&, std::uint32_t node);
// Something can be done without waiting for an event.
bool more_to_do(const FlowPlan&, const RunState&);
// What lies outside the commits and must be so now: start_child, cancel_child, await_flow. Recovery does these again.
std::vector<Effect> owed(const FlowPlan&, const RunState&);
// When time alone will change something; 0: never.
std::uint64_t next_timer_ms(const RunState&);

}  // namespace mycojobs
