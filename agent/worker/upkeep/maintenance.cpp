#include "worker/upkeep/maintenance.h"

#include <algorithm>

#include "base/log.h"
#include "model/codec.h"
#include "model/trace_context.h"
#include "text/plural.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

// The specification guarantees recovery within a lease plus one second. A lease is observed within one interval of the
// checks, or of the ticks of an idle context, and expires as soon as it was observed for its whole length.
constexpr std::uint64_t kMinLeaseCheckIntervalMs = 100, kMaxLeaseCheckIntervalMs = 400;
constexpr std::uint64_t kMaxTickIntervalMs = 200;  // maximum interval of ticks of an active context
constexpr std::uint64_t kIdleTickIntervalMs = 800;
// Between two searches of the lists of plain clients by the ticks of all agents, in an active and in an idle context.
constexpr std::uint64_t kSearchIntervalMs = 500, kIdleSearchIntervalMs = 5000;
// Maximum time between two ticks of this agent, since its retention may differ from that of other agents.
constexpr std::uint64_t kMaxSkippedMs = 30000;
constexpr std::uint64_t kActiveMs = 3000;         // a context counts as active for this time
constexpr std::uint64_t kMinTickIntervalMs = 20;  // minimum time between two ticks, for request_early_tick()
constexpr std::uint64_t kBatchPauseMs = 5;        // between two batches, so that other clients of the store are served
constexpr std::uint32_t kMaxRecordWaitMs = 2000;  // maximum wait of an entry of a queue or topic for its record

}  // namespace

Maintenance::Maintenance(const Clock& clock, const WorkerSettings& settings, OnPrerequisites on_prerequisites)
    : clock_(clock),
      on_prerequisites_(std::move(on_prerequisites)),
      lease_ms_(settings.lease_ms),
      lease_check_interval_ms_(
          std::clamp<std::uint64_t>(settings.lease_ms / 10, kMinLeaseCheckIntervalMs, kMaxLeaseCheckIntervalMs)) {
  request_.missing_wait_ms = kMaxRecordWaitMs;
  request_.retention = settings.retention;
  request_.retention_count = settings.retention_count;
}

Result<std::uint64_t> Maintenance::run_due_work(Store& store, Id context) {
  NextTimes& next_times = next_times_[context];
  Result<void> result;
  const auto is_unavailable = [&result] { return !result && result.error().code == Code::unavailable; };
  const auto keep_first_error = [&result](Result<void> part) {
    if (!part && result) result = std::move(part);
  };
  keep_first_error(tick(store, context, next_times));
  if (!is_unavailable()) keep_first_error(expire_leases(store, context, next_times));
  if (!is_unavailable()) keep_first_error(mark_lost_runners(store, context, next_times));
  if (!result) return tl::unexpected<Error>(std::move(result).error());
  const std::uint64_t now = clock_.boot_ms();
  std::uint64_t next = std::min(next_times.next_tick, next_times.next_runners);
  if (next_times.has_leases) next = std::min(next, next_times.next_leases);
  return next > now ? next - now : 0;
}

std::uint64_t Maintenance::get_tick_interval_ms(const NextTimes& next_times, std::uint64_t now) const {
  const bool is_active = now < next_times.active_until;
  return std::min(is_active ? kMaxTickIntervalMs : kIdleTickIntervalMs, 2 * lease_check_interval_ms_);
}

void Maintenance::on_activity(Id context) {
  NextTimes& next_times = next_times_[context];
  next_times.active_until = clock_.boot_ms() + kActiveMs;
  next_times.next_tick = std::min(next_times.next_tick, next_times.last_look + kMaxTickIntervalMs);
}

void Maintenance::request_early_tick(Id context) {
  on_activity(context);
  NextTimes& next_times = next_times_[context];
  next_times.next_tick = std::min(next_times.next_tick, next_times.last_look + kMinTickIntervalMs);
}

void Maintenance::clear_observations(Id context) {
  leases_[context].clear_observations();
  std::erase_if(silent_runners_, [context](const auto& entry) { return entry.first.first == context; });
}

Result<void> Maintenance::tick(LeaseStore& store, Id context, NextTimes& next_times) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < next_times.next_tick) return {};
  if (next_times.can_skip_ticks) MJ_CHECK(skip_needless_ticks(store, context, now));
  if (now < next_times.next_tick) return {};
  next_times.last_tick = next_times.last_look = now;
  next_times.next_tick = now + kMaxTickIntervalMs;  // after an error
  next_times.has_leases = true;                     // after an error the leases are checked anyway
  MJ_TRY(reply, store.tick(context, request_));
  next_times.next_tick = now + get_tick_interval_ms(next_times, now);
  next_times.has_leases = reply.lease_count > 0;
  if (!next_times.has_leases) leases_[context].clear_observations();
  if (reply.prerequisite_count > 0) on_prerequisites_(context);
  const bool has_worked = reply.queued + reply.woken_dependents + reply.missing_records + reply.timed_out > 0;
  if (has_worked) next_times.active_until = now + kActiveMs;
  if (reply.missing_records > 0 || reply.timed_out > 0) {
    log(LogLevel::info, "worker", "context {}: settled {}; {} waited too long in a queue", context,
        count_with_noun(reply.missing_records, "late entry", "late entries"), count_with_noun(reply.timed_out, "job"));
  }
  // next_due_ms counts from the answer of the store.
  const std::uint64_t answer_ms = clock_.boot_ms();
  if (reply.next_due_ms > 0) next_times.next_tick = std::min(next_times.next_tick, answer_ms + reply.next_due_ms);
  if (reply.has_more) next_times.next_tick = answer_ms + kBatchPauseMs;
  next_times.can_skip_ticks = !reply.has_more && !has_worked && reply.prerequisite_count == 0;
  return {};
}

// Returns whether a tick has to search the lists of plain clients. Ticks of other agents count, so that the number of
// ticks does not grow with the number of agents.
bool Maintenance::is_search_due(const NextTimes& next_times, const TimedWork& work, std::uint64_t now) {
  if (now >= next_times.last_tick + kMaxSkippedMs) return true;
  const std::uint64_t interval_ms = now < next_times.active_until ? kSearchIntervalMs : kIdleSearchIntervalMs;
  if (work.last_search_ms) return now >= next_times.last_tick + interval_ms && *work.last_search_ms >= interval_ms;
  // Searches that found no queue leave no time. All agents together search as often as one.
  return now >= next_times.last_tick + interval_ms * std::max<std::uint64_t>(next_times.live_runners, 1);
}

// Looks for work in this context and in contexts with a tick that is due soon, and postpones the ticks of contexts
// without work. If a server answers with an error, its contexts get their ticks, which report it.
Result<void> Maintenance::skip_needless_ticks(LeaseStore& store, Id context, std::uint64_t now) {
  std::vector<Id> asked;
  for (const auto& [id, next_times] : next_times_) {
    if (next_times.can_skip_ticks && next_times.next_tick <= now + get_tick_interval_ms(next_times, now) / 2)
      asked.push_back(id);
  }
  const auto found = store.find_timed_work(context, asked, kIdleTickIntervalMs);
  if (!found && found.error().code == Code::unavailable) return tl::unexpected<Error>(found.error());
  if (!found) return {};
  for (const auto& [id, work] : *found) {
    NextTimes& next_times = next_times_[id];
    if (work.is_due || is_search_due(next_times, work, now)) {
      next_times.can_skip_ticks = false;
      continue;
    }
    next_times.last_look = now;
    next_times.next_tick = now + get_tick_interval_ms(next_times, now);
    next_times.has_leases = work.has_leases;
    if (!work.has_leases) leases_[id].clear_observations();
  }
  return {};
}

Result<void> Maintenance::expire_leases(Store& store, Id context, NextTimes& next_times) {
  const std::uint64_t now = clock_.boot_ms();
  if (!next_times.has_leases || now < next_times.next_leases) return {};
  next_times.next_leases = now + lease_check_interval_ms_;
  MJ_TRY(leases, store.leases(context));
  Result<void> result;
  const auto unrenewed = leases_[context].find_unrenewed(leases, now, clock_.boot_ms(), lease_ms_);
  next_times.next_leases = std::min(next_times.next_leases, leases_[context].next_expiry_ms());
  for (const Lease& lease : unrenewed) {
    auto expired = store.expire(context, lease);
    if (!expired) {
      result = tl::unexpected<Error>(std::move(expired).error());  // reported after the other leases were processed
      if (result.error().code == Code::unavailable) return result;
    } else if (*expired) {
      auto record = store.load(context, lease.job_key);  // for the trace id in the log line; optional
      log(LogLevel::warn, "worker", "{}: its lease ran out; back to its queue",
          append_trace_id(lease.job_key, record ? decode<Job>(*record).record.traceparent : ""));
    }
  }
  return result;
}

Result<void> Maintenance::mark_lost_runners(Store& store, Id context, NextTimes& next_times) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < next_times.next_runners) return {};
  next_times.next_runners = now + std::max<std::uint64_t>(lease_ms_, 1000);
  MJ_TRY(runners, store.silent_runners(context, kRunnerLost));
  const std::uint64_t answer_ms = clock_.boot_ms();
  next_times.live_runners = runners.live_count;
  decltype(silent_runners_) still_silent;
  for (const auto& [id, holder] : runners.entries) {
    const auto key = std::pair(context, id);
    const auto known = silent_runners_.find(key);
    if (known == silent_runners_.end() || known->second.instance != holder.instance) {
      still_silent[key] = {holder.instance, answer_ms};
    } else if (now - known->second.since_boot_ms < lease_ms_) {
      still_silent[key] = known->second;
    } else {
      MJ_CHECK(mark_runner(store, context, id, kRunnerLost));
      log(LogLevel::warn, "worker",
          "context {}: runner {} is lost: process {} on {} has been silent for more than a lease", context, id,
          holder.pid, holder.host);
    }
  }
  std::erase_if(silent_runners_, [context](const auto& entry) { return entry.first.first == context; });
  silent_runners_.merge(still_silent);
  return {};
}

}  // namespace mycojobs
