#include "coordinator/schedules.h"

#include <algorithm>

#include "coordinator/create.h"
#include "domain/codec.h"
#include "domain/cron.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMostScheduleMs = 3600ULL * 1000;  // without a look
constexpr std::uint64_t kWaitMs = 1000;                    // until the next look at a run that another waits for

Result<RunBefore> run_before(FlowStore& store, Id context, const Schedule& schedule) {
  RunBefore before;
  if (schedule.last_flow == 0) return before;
  MJ_TRY(read, store.read(context, schedule.last_flow, kRecordAlone));
  const Flow flow = decode<Flow>(read.record).record;
  if (read.record.empty() || flow.id == 0) return before;
  before.running = flow.status != FlowStatus::error && flow.status != FlowStatus::finished;
  before.ended_ms = flow.ended_ms;
  return before;
}

Result<std::shared_ptr<const FlowPlan>> plan_of(FlowStore& store, RunCache& cache, Id context,
                                                const std::string& hash) {
  if (auto plan = cache.plan(context, hash)) return plan;
  MJ_TRY(text, store.definition(context, hash));
  MJ_TRY(read, plan_of_text(text, hash));
  auto plan = std::make_shared<const FlowPlan>(std::move(read));
  cache.keep_plan(context, plan);
  return std::shared_ptr<const FlowPlan>(plan);
}

// What the store will answer differently when it is asked again.
bool passes(Code code) { return code == Code::unavailable || code == Code::io; }

Result<Id> start(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule, std::uint64_t moment,
                 const MayCreate& may_create) {
  if (may_create) MJ_CHECK(may_create(schedule.caller));
  MJ_TRY(plan, plan_of(store, cache, context, schedule.definition_hash));
  NewFlow wanted;
  wanted.context = context;
  wanted.caller = schedule.caller;
  wanted.env_vars = {{"MYCOJOBS_SCHEDULE", schedule.name}, {"MYCOJOBS_SCHEDULED_MS", std::to_string(moment)}};
  wanted.idempotency_key = "schedule:" + schedule.name + ":" + std::to_string(moment);
  MJ_TRY(flow, create_flow(store, *plan, wanted));
  ProgressRequest request;
  request.context = context;
  request.flow = flow.id;
  request.start = StartRun{"schedule:" + schedule.name, schedule.caller};
  // Started already, by whoever was killed before it could say so: as good.
  if (auto moved = progress(store, cache, request); !moved && moved.error().code != Code::conflict) {
    return tl::unexpected(std::move(moved).error());
  }
  return flow.id;
}

// Starts what the turn says. What cannot be started is passed over, with the reason noted: trying for ever would help
// nobody.
Result<void> take_turn(FlowStore& store, RunCache& cache, Id context, Schedule& schedule, ScheduleTurn turn,
                       const MayCreate& may_create) {
  for (std::uint64_t moment : turn.starts) {
    auto flow = start(store, cache, context, schedule, moment, may_create);
    if (flow) {
      schedule.last_flow = *flow;
      schedule.last_ms = moment;
      continue;
    }
    if (passes(flow.error().code)) return tl::unexpected(std::move(flow).error());
    turn.note = moment_text(moment, schedule.zone) + " was not started: " + flow.error().message;
  }
  schedule.next_ms = turn.next_ms;
  schedule.note = std::move(turn.note);
  return {};
}

std::uint64_t until(std::uint64_t next_ms, std::uint64_t now_ms) {
  if (next_ms == 0) return kMostScheduleMs;
  return next_ms <= now_ms ? 1 : std::min(next_ms - now_ms, kMostScheduleMs);
}

// Its next look, or conflict: somebody changed it meanwhile, or was faster.
Result<std::uint64_t> settle(FlowStore& store, RunCache& cache, Id context, Schedule schedule, std::uint64_t now_ms,
                             const MayCreate& may_create) {
  if (schedule.paused) return kMostScheduleMs;
  if (schedule.next_ms == 0 || schedule.next_ms > now_ms) return until(schedule.next_ms, now_ms);
  const Schedule as_read = schedule;
  MJ_TRY(before, run_before(store, context, schedule));
  auto turn = turn_of(schedule, before, now_ms);
  bool waits = false;
  if (turn) {
    waits = turn->waits;
    MJ_CHECK(take_turn(store, cache, context, schedule, std::move(*turn), may_create));
  } else {
    // Its record is not what anybody would have let in: until that is mended it stands still.
    schedule.next_ms = 0;
    schedule.note = turn.error().message;
  }
  const bool same = schedule.next_ms == as_read.next_ms && schedule.note == as_read.note &&
                    schedule.last_flow == as_read.last_flow && schedule.last_ms == as_read.last_ms;
  if (!same) MJ_CHECK(store.put_schedule(context, schedule, "", as_read.revision));
  return waits ? kWaitMs : until(schedule.next_ms, now_ms);
}

}  // namespace

Result<std::uint64_t> settle_schedule(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule,
                                      const MayCreate& may_create) {
  MJ_TRY(now, store.now_ms(context));
  return settle(store, cache, context, schedule, now, may_create);
}

Result<std::uint64_t> run_schedules(FlowStore& store, RunCache& cache, Id context, const MayCreate& may_create) {
  MJ_TRY(now, store.now_ms(context));
  MJ_TRY(schedules, store.schedules(context));
  std::uint64_t wait_ms = kMostScheduleMs;
  for (const Schedule& schedule : schedules) {
    auto next = settle(store, cache, context, schedule, now, may_create);
    if (!next && passes(next.error().code)) return next;
    // Another was faster, or changed it: what it says now is looked at at once.
    wait_ms = std::min(wait_ms, next.value_or(1));
  }
  return wait_ms;
}

}  // namespace mycojobs
