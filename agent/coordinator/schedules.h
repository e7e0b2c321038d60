// Flows that start by the clock. What fires is decided purely (turn_of); run_schedules() brings it about, in steps each
// of which may be repeated: the flow of a moment has the idempotency key schedule:<name>:<moment in ms> of its caller,
// so that one moment never starts twice, whoever tries and however often, also after the schedule was changed.
//
//   moment comes --> create_flow (by its key) --> StartRun --> put_schedule (its revision fences)
//
// overlap, when the run before has not ended:   allow: starts beside it   skip: is passed over
//   queue: waits for its end, at most the newest kMaxMoments of them, one run after the other
// missed, of moments that came over a minute ago, when nobody was there to start them:
//   skip: are passed over   once: the latest starts, for all of them   all: all start, at most the newest kMaxMoments
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/progress.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"

namespace mycojobs {

// Whether a schedule's caller may still make flows, and this one is within the limits of its context: what may not be
// started is noted and passed over. Absent: nothing is asked.
using MayStart = std::function<Result<void>(Id caller, const FlowPlan&)>;

inline constexpr std::uint64_t kOnTimeMs = 60000;  // a coordinator that takes over is this late at most
inline constexpr std::size_t kMaxMoments = 100;
inline constexpr std::size_t kMaxStartsAtOnce = 10;  // the others start in the next turn

// Error invalid: names the field, what is wrong and what is allowed.
Result<void> check_schedule(const Schedule&);

struct RunBefore {
  bool running = false;
  std::uint64_t ended_ms = 0;  // 0: there was none, or its record has gone
};
struct ScheduleTurn {
  std::vector<std::uint64_t> starts;  // moments, rising: a flow for each
  std::uint64_t next_ms = 0;          // Schedule::next_ms from now on; 0: never again
  std::string note;                   // Schedule::note from now on
  bool waits = false;                 // for the run before to end
};
// Nothing changes for one that is paused, or whose next moment has not come.
Result<ScheduleTurn> turn_of(const Schedule&, const RunBefore&, std::uint64_t now_ms);

// Starts what is due in the context. Answers in how many ms to call again, at most an hour. A schedule that cannot
// start its flow (its definition is missing ...) gets a note, and holds nobody up. Errors: the store's.
Result<std::uint64_t> run_schedules(FlowStore&, RunCache&, Id context, const MayStart& = {});
// The same for one of them. What is due belongs to the definition and the times that it came under: before a schedule
// is changed it is settled.
Result<std::uint64_t> settle_schedule(FlowStore&, RunCache&, Id context, const Schedule&, const MayStart& = {});

}  // namespace mycojobs
