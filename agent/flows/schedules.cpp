#include "flows/schedules.h"

#include <algorithm>
#include <deque>

#include "flows/flow_creation.h"
#include "model/codec.h"
#include "text/cron.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

constexpr std::uint64_t kHourMs = 3600ULL * 1000;

struct DueTimes {
  std::deque<std::uint64_t> moments;  // the newest kMaxMoments times, in ascending order
  bool more = false;                  // older times were left out
};

// Collects the scheduled times between `from` and `to`.
Result<void> collect(const Cron& cron, const std::string& zone, std::uint64_t from, std::uint64_t to, DueTimes& due) {
  due = {};
  for (std::uint64_t at = from;;) {
    MJ_TRY(next, next_time(cron, zone, at));
    if (next == 0 || next > to) return {};
    due.moments.push_back(next);
    if (due.moments.size() > kMaxMoments) {
      due.moments.pop_front();
      due.more = true;
    }
    at = next;
  }
}

// Returns the scheduled times from the next time of the schedule until now. After a long outage only the newest times
// are computed, in windows that grow backwards from now.
Result<DueTimes> due_moments(const Cron& cron, const Schedule& schedule, std::uint64_t now_ms) {
  const std::uint64_t first = schedule.next_ms - 1;
  DueTimes due;
  for (std::uint64_t window = 2 * kHourMs;; window *= 4) {
    const bool whole = now_ms - first <= window;
    MJ_CHECK(collect(cron, schedule.zone, whole ? first : now_ms - window, now_ms, due));
    if (whole) return due;
    if (due.moments.size() >= kMaxMoments) {
      due.more = true;
      return due;
    }
  }
}

std::string several(std::size_t count, bool more) {
  return (more ? "over " : "") + std::to_string(count) + (count == 1 && !more ? " moment" : " moments");
}

}  // namespace

Result<void> check_schedule(const Schedule& schedule) {
  auto cron = parse_cron(schedule.cron);
  if (!cron) return fail(cron.error(), "cron");
  if (auto zone = check_zone(schedule.zone); !zone) return fail(zone.error(), "zone");
  static constexpr std::string_view kOverlap[] = {"allow", "skip", "queue"};
  static constexpr std::string_view kMissed[] = {"skip", "once", "all"};
  const auto check = [](const char* field, const std::string& word, std::span<const std::string_view> words) {
    Result<void> fine;
    if (std::find(words.begin(), words.end(), word) != words.end()) return fine;
    std::string all;
    for (auto each : words) all += (all.empty() ? "" : ", ") + std::string(each);
    fine = fail(Code::invalid,
                std::string(field) + ": " + excerpt(word) + " is not one of " + all + did_you_mean(word, words));
    return fine;
  };
  MJ_CHECK(check("overlap", schedule.overlap, kOverlap));
  return check("missed", schedule.missed, kMissed);
}

Result<ScheduleDecision> decide_schedule(const Schedule& schedule, const PreviousRun& before, std::uint64_t now_ms) {
  ScheduleDecision turn{{}, schedule.next_ms, schedule.note, false};
  if (schedule.paused || schedule.next_ms == 0 || schedule.next_ms > now_ms) return turn;
  MJ_CHECK(check_schedule(schedule));
  MJ_TRY(cron, parse_cron(schedule.cron));
  MJ_TRY(due, due_moments(cron, schedule, now_ms));
  MJ_TRY(next, next_time(cron, schedule.zone, now_ms));
  turn.next_ms = next;
  turn.note.clear();
  if (due.moments.empty()) return turn;  // The record was edited: next_ms does not match the cron expression.

  const std::string run = "flow " + std::to_string(schedule.last_flow);
  const bool queue = schedule.overlap == "queue";
  if (queue && before.running) {
    turn.next_ms = due.moments.front();
    turn.waits = true;
    turn.note = several(due.moments.size(), due.more) + (due.moments.size() == 1 ? " waits" : " wait") +
                " for the end of " + run;
    return turn;
  }
  // Times during the previous run were waiting. Other times were missed or are due now.
  std::vector<std::uint64_t> chosen;
  std::vector<std::uint64_t> others;
  for (std::uint64_t moment : due.moments) {
    const bool waited = queue && moment < before.ended_ms;
    const bool now = now_ms - moment < kOnTimeMs;
    (waited || now || schedule.missed == "all" ? chosen : others).push_back(moment);
  }
  if (schedule.missed == "once" && !others.empty()) {
    if (chosen.empty()) chosen.push_back(others.back());
    others.clear();
  }
  if (!others.empty()) {
    turn.note = several(others.size(), due.more) + " skipped: no coordinator was running to start " +
                (others.size() == 1 ? "it" : "them");
  } else if (due.more && schedule.missed != "once") {
    turn.note = "older times skipped: at most " + std::to_string(kMaxMoments) + " missed times are started late";
  }
  if (chosen.empty()) return turn;
  if (schedule.overlap == "skip") {
    if (before.running) {
      turn.note = several(chosen.size(), false) + " skipped: " + run + " had not ended";
      return turn;
    }
    // Only the newest starts, since all of them would run at the same time.
    chosen.erase(chosen.begin(), chosen.end() - 1);
  }
  const std::size_t max = queue ? 1 : kMaxConcurrentStarts;
  if (chosen.size() > max) {
    turn.next_ms = chosen[max];
    turn.waits = queue;
    chosen.resize(max);
  }
  turn.starts = std::move(chosen);
  return turn;
}

namespace {

constexpr std::uint64_t kMaxScheduleMs = 3600ULL * 1000;  // maximum time until the next check
constexpr std::uint64_t kWaitMs = 1000;                   // interval of checks while a run waits for the previous one

// Returns whether an error of the store is temporary.
bool passes(Code code) { return code == Code::unavailable || code == Code::io; }

Result<PreviousRun> run_before(FlowStore& store, Id context, const Schedule& schedule) {
  PreviousRun before;
  if (schedule.last_flow == 0) return before;
  auto read = store.read(context, schedule.last_flow, kRecordAlone);
  if (!read && passes(read.error().code)) return tl::unexpected<Error>(std::move(read).error());
  if (!read) return before;  // The key of the flow belongs to another client.
  const Flow flow = decode<Flow>(read->record).record;
  if (read->record.empty() || flow.id == 0) return before;
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
  cache.cache_plan(context, plan);
  return std::shared_ptr<const FlowPlan>(plan);
}

Result<Id> start(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule, std::uint64_t moment,
                 const StartCheck& may_start) {
  MJ_TRY(plan, plan_of(store, cache, context, schedule.definition_hash));
  if (may_start) MJ_CHECK(may_start(schedule.caller, *plan));
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
  // A conflict means that a coordinator started the flow and crashed before it stored the schedule.
  if (auto moved = progress(store, cache, request); !moved && moved.error().code != Code::conflict) {
    return tl::unexpected(std::move(moved).error());
  }
  return flow.id;
}

// Starts the flows of a turn. A flow that cannot start is skipped, and the reason is noted, since a retry in a loop
// would not succeed.
Result<void> take_turn(FlowStore& store, RunCache& cache, Id context, Schedule& schedule, ScheduleDecision turn,
                       const StartCheck& may_start) {
  for (std::uint64_t moment : turn.starts) {
    auto flow = start(store, cache, context, schedule, moment, may_start);
    if (flow) {
      schedule.last_flow = *flow;
      schedule.last_ms = moment;
      continue;
    }
    if (passes(flow.error().code)) return tl::unexpected(std::move(flow).error());
    turn.note = time_to_string(moment, schedule.zone) + " was not started: " + flow.error().message;
  }
  schedule.next_ms = turn.next_ms;
  schedule.note = std::move(turn.note);
  return {};
}

std::uint64_t until(std::uint64_t next_ms, std::uint64_t now_ms) {
  if (next_ms == 0) return kMaxScheduleMs;
  return next_ms <= now_ms ? 1 : std::min(next_ms - now_ms, kMaxScheduleMs);
}

// Returns the time in ms until the next check. Error `conflict`: another process changed the schedule in between.
Result<std::uint64_t> settle(FlowStore& store, RunCache& cache, Id context, Schedule schedule, std::uint64_t now_ms,
                             const StartCheck& may_start) {
  if (schedule.paused) return kMaxScheduleMs;
  if (schedule.next_ms == 0 || schedule.next_ms > now_ms) return until(schedule.next_ms, now_ms);
  const Schedule as_read = schedule;
  MJ_TRY(before, run_before(store, context, schedule));
  auto turn = decide_schedule(schedule, before, now_ms);
  bool waits = false;
  if (turn) {
    waits = turn->waits;
    MJ_CHECK(take_turn(store, cache, context, schedule, std::move(*turn), may_start));
  } else {
    // The record is invalid. The schedule stops until the record is repaired.
    schedule.next_ms = 0;
    schedule.note = turn.error().message;
  }
  const bool same = schedule.next_ms == as_read.next_ms && schedule.note == as_read.note &&
                    schedule.last_flow == as_read.last_flow && schedule.last_ms == as_read.last_ms;
  if (!same) MJ_CHECK(store.put_schedule(context, schedule, "", as_read.revision));
  return waits ? kWaitMs : until(schedule.next_ms, now_ms);
}

}  // namespace

Result<std::uint64_t> complete_schedule(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule,
                                        const StartCheck& may_start) {
  MJ_TRY(now, store.now_ms(context));
  return settle(store, cache, context, schedule, now, may_start);
}

Result<std::uint64_t> run_schedules(FlowStore& store, RunCache& cache, Id context, const StartCheck& may_start) {
  MJ_TRY(now, store.now_ms(context));
  MJ_TRY(schedules, store.schedules(context));
  std::uint64_t wait_ms = kMaxScheduleMs;
  for (const Schedule& schedule : schedules) {
    auto next = settle(store, cache, context, schedule, now, may_start);
    if (!next && passes(next.error().code)) return next;
    // After a conflict the changed schedule is read again at once.
    const std::uint64_t again_ms = !next && next.error().code == Code::conflict ? 1 : kWaitMs;
    wait_ms = std::min(wait_ms, next.value_or(again_ms));
  }
  return wait_ms;
}

}  // namespace mycojobs
