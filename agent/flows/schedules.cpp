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
  std::deque<std::uint64_t> times;  // the newest kMaxPendingRuns times, in ascending order
  bool has_older = false;           // older times were left out
};

// Collects the scheduled times after `after_ms`, up to and including `until_ms`.
Result<void> collect_due_times(const Cron& cron, const std::string& zone, std::uint64_t after_ms,
                               std::uint64_t until_ms, DueTimes& due) {
  due = {};
  for (std::uint64_t time_ms = after_ms;;) {
    MJ_TRY(next, next_time(cron, zone, time_ms));
    if (next == 0 || next > until_ms) return {};
    due.times.push_back(next);
    if (due.times.size() > kMaxPendingRuns) {
      due.times.pop_front();
      due.has_older = true;
    }
    time_ms = next;
  }
}

// Returns the scheduled times from the next time of the schedule until now. After a long outage only the newest times
// are computed, in windows that grow backwards from now.
Result<DueTimes> find_due_times(const Cron& cron, const Schedule& schedule, std::uint64_t now_ms) {
  const std::uint64_t after_ms = schedule.next_start_ms - 1;
  DueTimes due;
  for (std::uint64_t window = 2 * kHourMs;; window *= 4) {
    const bool is_complete = now_ms - after_ms <= window;
    MJ_CHECK(collect_due_times(cron, schedule.zone, is_complete ? after_ms : now_ms - window, now_ms, due));
    if (is_complete) return due;
    if (due.times.size() >= kMaxPendingRuns) {
      due.has_older = true;
      return due;
    }
  }
}

std::string format_count(std::size_t count, bool is_minimum) {
  return (is_minimum ? "over " : "") + std::to_string(count) + (count == 1 && !is_minimum ? " moment" : " moments");
}

}  // namespace

Result<void> check_schedule(const Schedule& schedule) {
  auto cron = parse_cron(schedule.cron);
  if (!cron) return fail(cron.error(), "cron");
  if (auto zone = check_zone(schedule.zone); !zone) return fail(zone.error(), "zone");
  static constexpr std::string_view kOverlap[] = {"allow", "skip", "queue"};
  static constexpr std::string_view kMissed[] = {"skip", "once", "all"};
  const auto check = [](const char* field, const std::string& word, std::span<const std::string_view> words) {
    Result<void> result;
    if (std::find(words.begin(), words.end(), word) != words.end()) return result;
    std::string allowed;
    for (auto allowed_word : words) allowed += (allowed.empty() ? "" : ", ") + std::string(allowed_word);
    result = fail(Code::invalid,
                  std::string(field) + ": " + excerpt(word) + " is not one of " + allowed + did_you_mean(word, words));
    return result;
  };
  MJ_CHECK(check("overlap", schedule.overlap, kOverlap));
  return check("missed", schedule.missed, kMissed);
}

Result<ScheduleDecision> decide_schedule(const Schedule& schedule, const PreviousRun& previous, std::uint64_t now_ms) {
  ScheduleDecision decision{{}, schedule.next_start_ms, schedule.skip_reason, false};
  if (schedule.paused || schedule.next_start_ms == 0 || schedule.next_start_ms > now_ms) return decision;
  MJ_CHECK(check_schedule(schedule));
  MJ_TRY(cron, parse_cron(schedule.cron));
  MJ_TRY(due, find_due_times(cron, schedule, now_ms));
  MJ_TRY(next, next_time(cron, schedule.zone, now_ms));
  decision.next_ms = next;
  decision.note.clear();
  if (due.times.empty()) return decision;  // The record was edited: next_ms does not match the cron expression.

  const std::string run = "flow " + std::to_string(schedule.last_flow);
  const bool queue = schedule.overlap == "queue";
  if (queue && previous.running) {
    decision.next_ms = due.times.front();
    decision.is_waiting = true;
    decision.note = format_count(due.times.size(), due.has_older) + (due.times.size() == 1 ? " waits" : " wait") +
                    " for the end of " + run;
    return decision;
  }
  // Times during the previous run were waiting. Other times were missed or are due now.
  std::vector<std::uint64_t> starts;
  std::vector<std::uint64_t> missed;
  for (std::uint64_t time_ms : due.times) {
    const bool was_waiting = queue && time_ms < previous.ended_ms;
    const bool is_on_time = now_ms - time_ms < kMaxStartDelayMs;
    (was_waiting || is_on_time || schedule.missed == "all" ? starts : missed).push_back(time_ms);
  }
  if (schedule.missed == "once" && !missed.empty()) {
    if (starts.empty()) starts.push_back(missed.back());
    missed.clear();
  }
  if (!missed.empty()) {
    decision.note = format_count(missed.size(), due.has_older) + " skipped: no coordinator was running to start " +
                    (missed.size() == 1 ? "it" : "them");
  } else if (due.has_older && schedule.missed != "once") {
    decision.note =
        "older times skipped: at most " + std::to_string(kMaxPendingRuns) + " missed times are started late";
  }
  if (starts.empty()) return decision;
  if (schedule.overlap == "skip") {
    if (previous.running) {
      decision.note = format_count(starts.size(), false) + " skipped: " + run + " had not ended";
      return decision;
    }
    // Only the newest starts, since all of them would run at the same time.
    starts.erase(starts.begin(), starts.end() - 1);
  }
  const std::size_t max = queue ? 1 : kMaxConcurrentStarts;
  if (starts.size() > max) {
    decision.next_ms = starts[max];
    decision.is_waiting = queue;
    starts.resize(max);
  }
  decision.starts = std::move(starts);
  return decision;
}

namespace {

constexpr std::uint64_t kMaxCheckIntervalMs = 3600ULL * 1000;  // maximum time until the next check
constexpr std::uint64_t kPreviousRunCheckIntervalMs =
    1000;  // interval of checks while a run waits for the previous one

// Returns whether an error of the store is temporary.
bool is_temporary(Code code) { return code == Code::unavailable || code == Code::io; }

Result<PreviousRun> find_previous_run(FlowStore& store, Id context, const Schedule& schedule) {
  PreviousRun previous;
  if (schedule.last_flow == 0) return previous;
  auto read = store.read(context, schedule.last_flow, kMaxFlowRevision);
  if (!read && is_temporary(read.error().code)) return tl::unexpected<Error>(std::move(read).error());
  if (!read) return previous;  // The key of the flow belongs to another client.
  const Flow flow = decode<Flow>(read->record).record;
  if (read->record.empty() || flow.id == 0) return previous;
  previous.running = flow.status != FlowStatus::error && flow.status != FlowStatus::finished;
  previous.ended_ms = flow.ended_ms;
  return previous;
}

Result<std::shared_ptr<const FlowPlan>> load_schedule_plan(FlowStore& store, RunCache& cache, Id context,
                                                           const std::string& hash) {
  if (auto plan = cache.plan(context, hash)) return plan;
  MJ_TRY(text, store.definition(context, hash));
  MJ_TRY(parsed, parse_stored_plan(text, hash));
  auto plan = std::make_shared<const FlowPlan>(std::move(parsed));
  cache.cache_plan(context, plan);
  return std::shared_ptr<const FlowPlan>(plan);
}

Result<Id> start_run(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule, std::uint64_t time_ms,
                     const StartCheck& check_start) {
  MJ_TRY(plan, load_schedule_plan(store, cache, context, schedule.definition_hash));
  if (check_start) MJ_CHECK(check_start(schedule.caller, *plan));
  NewFlow new_flow;
  new_flow.context = context;
  new_flow.caller = schedule.caller;
  new_flow.env_vars = {{"MYCOJOBS_SCHEDULE", schedule.name}, {"MYCOJOBS_SCHEDULED_MS", std::to_string(time_ms)}};
  new_flow.idempotency_key = "schedule:" + schedule.name + ":" + std::to_string(time_ms);
  MJ_TRY(flow, create_flow(store, *plan, new_flow));
  ProgressRequest request;
  request.context = context;
  request.flow = flow.id;
  request.start = StartRun{"schedule:" + schedule.name, schedule.caller};
  // A conflict means that a coordinator started the flow and crashed before it stored the schedule.
  if (auto advanced = advance_run(store, cache, request); !advanced && advanced.error().code != Code::conflict) {
    return tl::unexpected(std::move(advanced).error());
  }
  return flow.id;
}

// Starts the flows of a decision. A flow that cannot start is skipped, and the reason is noted, since a retry in a loop
// would not succeed.
Result<void> start_due_runs(FlowStore& store, RunCache& cache, Id context, Schedule& schedule,
                            ScheduleDecision decision, const StartCheck& check_start) {
  for (std::uint64_t time_ms : decision.starts) {
    auto flow = start_run(store, cache, context, schedule, time_ms, check_start);
    if (flow) {
      schedule.last_flow = *flow;
      schedule.last_start_ms = time_ms;
      continue;
    }
    if (is_temporary(flow.error().code)) return tl::unexpected(std::move(flow).error());
    decision.note = format_zoned_time(time_ms, schedule.zone) + " was not started: " + flow.error().message;
  }
  schedule.next_start_ms = decision.next_ms;
  schedule.skip_reason = std::move(decision.note);
  return {};
}

std::uint64_t wait_until(std::uint64_t next_ms, std::uint64_t now_ms) {
  if (next_ms == 0) return kMaxCheckIntervalMs;
  return next_ms <= now_ms ? 1 : std::min(next_ms - now_ms, kMaxCheckIntervalMs);
}

// Returns the time in ms until the next check. Error `conflict`: another process changed the schedule in between.
Result<std::uint64_t> update_schedule(FlowStore& store, RunCache& cache, Id context, Schedule schedule,
                                      std::uint64_t now_ms, const StartCheck& check_start) {
  if (schedule.paused) return kMaxCheckIntervalMs;
  if (schedule.next_start_ms == 0 || schedule.next_start_ms > now_ms) return wait_until(schedule.next_start_ms, now_ms);
  const Schedule original = schedule;
  MJ_TRY(previous, find_previous_run(store, context, schedule));
  auto decision = decide_schedule(schedule, previous, now_ms);
  bool is_waiting = false;
  if (decision) {
    is_waiting = decision->is_waiting;
    MJ_CHECK(start_due_runs(store, cache, context, schedule, std::move(*decision), check_start));
  } else {
    // The record is invalid. The schedule stops until the record is repaired.
    schedule.next_start_ms = 0;
    schedule.skip_reason = decision.error().message;
  }
  const bool is_unchanged = schedule.next_start_ms == original.next_start_ms &&
                            schedule.skip_reason == original.skip_reason && schedule.last_flow == original.last_flow &&
                            schedule.last_start_ms == original.last_start_ms;
  if (!is_unchanged) MJ_CHECK(store.put_schedule(context, schedule, "", original.revision));
  return is_waiting ? kPreviousRunCheckIntervalMs : wait_until(schedule.next_start_ms, now_ms);
}

}  // namespace

Result<std::uint64_t> complete_schedule(FlowStore& store, RunCache& cache, Id context, const Schedule& schedule,
                                        const StartCheck& check_start) {
  MJ_TRY(now, store.now_ms(context));
  return update_schedule(store, cache, context, schedule, now, check_start);
}

Result<std::uint64_t> run_schedules(FlowStore& store, RunCache& cache, Id context, const StartCheck& check_start) {
  MJ_TRY(schedules, store.schedules(context));
  if (schedules.empty()) return kMaxCheckIntervalMs;
  MJ_TRY(now, store.now_ms(context));
  std::uint64_t wait_ms = kMaxCheckIntervalMs;
  for (const Schedule& schedule : schedules) {
    auto next = update_schedule(store, cache, context, schedule, now, check_start);
    if (!next && is_temporary(next.error().code)) return next;
    // After a conflict the changed schedule is read again at once.
    const std::uint64_t retry_ms = !next && next.error().code == Code::conflict ? 1 : kPreviousRunCheckIntervalMs;
    wait_ms = std::min(wait_ms, next.value_or(retry_ms));
  }
  return wait_ms;
}

}  // namespace mycojobs
