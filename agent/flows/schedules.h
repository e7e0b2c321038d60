// Flows that start at scheduled times. decide_schedule() decides without side effects which flows start;
// run_schedules() starts them in steps that can be repeated. The flow of a scheduled time has the idempotency key
// schedule:<name>:<time in ms> of its caller, so that it is created once, also by two coordinators and after a change
// of the schedule.
//
//   due time --> create_flow (with the idempotency key) --> StartRun --> put_schedule (fenced by its revision)
//
// overlap, when the previous run has not ended:   allow: start beside it   skip: skip the new run
//   queue: wait for its end; at most the newest kMaxPendingRuns runs wait, and start one after the other
// missed, for times more than a minute ago at which no coordinator was running:
//   skip: skip them   once: start the latest one only   all: start all of them, at most the newest kMaxPendingRuns
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "flows/flow_progress.h"
#include "store/flow_store.h"

namespace mycojobs {

// Checks that the caller of a schedule may still create flows, and that the flow is within the limits of the context. A
// flow that may not start is skipped with a note. An empty function skips the check.
using StartCheck = std::function<Result<void>(Id caller, const FlowPlan&)>;

inline constexpr std::uint64_t kMaxStartDelayMs = 60000;  // maximum delay when another coordinator acquires leadership
inline constexpr std::size_t kMaxPendingRuns = 100;
inline constexpr std::size_t kMaxConcurrentStarts = 10;  // further flows start in the next iteration

// Validates a schedule. Error `invalid` names the field, the value and the allowed values.
Result<void> check_schedule(const Schedule&);

struct PreviousRun {
  bool running = false;
  std::uint64_t ended_ms = 0;  // 0 if there is no previous run, or its record was deleted
};
struct ScheduleDecision {
  std::vector<std::uint64_t> starts;  // scheduled times in ascending order; one flow starts for each
  std::uint64_t next_ms = 0;          // new Schedule::next_start_ms; 0 if there is no further run
  std::string note;                   // new Schedule::skip_reason
  bool is_waiting = false;            // for the end of the previous run
};
// Returns the changes of a schedule at this time. There are none if the schedule is paused or not due.
Result<ScheduleDecision> decide_schedule(const Schedule&, const PreviousRun&, std::uint64_t now_ms);

// Starts all due flows of the context. Returns the time in ms until the next call, at most one hour. If the flow of a
// schedule cannot start (for example, because the definition is missing), the schedule gets a note and does not delay
// other schedules. Errors are those of the store.
Result<std::uint64_t> run_schedules(FlowStore&, RunCache&, Id context, const StartCheck& = {});
// As run_schedules(), for one schedule. Must be called before a schedule is changed, because runs that are due belong
// to the old definition and times.
Result<std::uint64_t> complete_schedule(FlowStore&, RunCache&, Id context, const Schedule&, const StartCheck& = {});

}  // namespace mycojobs
