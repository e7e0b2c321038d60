#include "worker/upkeep/maintenance.h"

#include <algorithm>

#include "base/log.h"
#include "model/codec.h"
#include "model/trace_context.h"
#include "text/plural.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

// Recovery is promised within a lease plus one second. Two of these intervals and a step of the store fit into that
// second.
constexpr std::uint64_t kMinMs = 100, kMaxMs = 400;
constexpr std::uint64_t kTickMs = 200;            // maximum interval of ticks
constexpr std::uint64_t kHurryMs = 20;            // minimum time from the last tick to a tick that hurry() requests
constexpr std::uint64_t kPartPauseMs = 5;         // between two portions, since other clients need the store too
constexpr std::uint32_t kWaitForRecordMs = 2000;  // maximum wait of an entry of a queue or topic for its record

}  // namespace

Maintenance::Maintenance(const Clock& clock, const WorkerSettings& settings)
    : clock_(clock),
      lease_ms_(settings.lease_ms),
      every_ms_(std::clamp<std::uint64_t>(settings.lease_ms / 10, kMinMs, kMaxMs)) {
  request_.missing_wait_ms = kWaitForRecordMs;
  request_.retention_ms = settings.retention_ms;
  request_.retention_count = settings.retention_count;
}

Result<std::uint64_t> Maintenance::look_after(const MaintenanceStore& store, Id context) {
  NextTimes& turns = turns_[context];
  Result<void> done;
  const auto away = [&done] { return !done && done.error().code == Code::unavailable; };
  const auto take = [&done](Result<void> one) {
    if (!one && done) done = std::move(one);
  };
  take(tick(store, context, turns));
  if (!away()) take(expire_leases(store, context, turns));
  if (!away()) take(mark_lost_runners(store, context, turns));
  if (!done) return tl::unexpected<Error>(std::move(done).error());
  const std::uint64_t now = clock_.boot_ms();
  const std::uint64_t next = std::min({turns.next_tick, turns.next_leases, turns.next_runners});
  return next > now ? next - now : 0;
}

void Maintenance::hurry() {
  for (auto& [context, turns] : turns_) turns.next_tick = std::min(turns.next_tick, turns.ticked + kHurryMs);
}

void Maintenance::clear_observations(Id context) {
  leases_[context].clear_observations();
  std::erase_if(silent_, [context](const auto& entry) { return entry.first.first == context; });
}

Result<void> Maintenance::tick(LeaseStore& store, Id context, NextTimes& turns) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < turns.next_tick) return {};
  turns.ticked = now;
  turns.next_tick = now + std::min(every_ms_, kTickMs);
  MJ_TRY(reply, store.tick(context, request_));
  if (reply.missing > 0 || reply.overdue > 0) {
    log(LogLevel::info, "worker", "context {}: settled {}; {} waited too long in a queue", context,
        count_with_noun(reply.missing, "late entry", "late entries"), count_with_noun(reply.overdue, "job"));
  }
  // The store's value is relative to its answer.
  const std::uint64_t answered = clock_.boot_ms();
  if (reply.next_due_ms > 0) turns.next_tick = std::min(turns.next_tick, answered + reply.next_due_ms);
  if (reply.more) turns.next_tick = answered + kPartPauseMs;
  return {};
}

Result<void> Maintenance::expire_leases(const StoreRoles<LeaseStore, RecordStore>& store, Id context,
                                        NextTimes& turns) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < turns.next_leases) return {};
  turns.next_leases = now + every_ms_;
  MJ_TRY(leases, store.as<LeaseStore>().leases(context));
  Result<void> done;
  for (const Lease& lease : leases_[context].unrenewed(leases, now, clock_.boot_ms(), lease_ms_)) {
    auto expired = store.as<LeaseStore>().expire(context, lease);
    if (!expired) {
      done = tl::unexpected<Error>(std::move(expired).error());  // reported after the other leases were processed
      if (done.error().code == Code::unavailable) return done;
    } else if (*expired) {
      auto record = store.as<RecordStore>().load(context, lease.job_key);  // for the trace id in the log line; optional
      log(LogLevel::warn, "worker", "{}: its lease ran out; back to its queue",
          in_trace(lease.job_key, record ? decode<Job>(*record).record.traceparent : ""));
    }
  }
  return done;
}

Result<void> Maintenance::mark_lost_runners(const StoreRoles<RunnerStore, RecordStore>& store, Id context,
                                            NextTimes& turns) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < turns.next_runners) return {};
  turns.next_runners = now + std::max<std::uint64_t>(lease_ms_, 1000);  // the check reads the record of every runner
  MJ_TRY(runners, store.as<RunnerStore>().held_runners(context));
  const std::uint64_t answered = clock_.boot_ms();
  decltype(silent_) still;
  for (const RunnerInfo& info : runners) {
    if (info.held_ms > 0 || info.runner.detail == kRunnerLost) continue;
    const auto key = std::pair(context, info.runner.id);
    const auto before = silent_.find(key);
    if (before == silent_.end() || before->second.instance != info.hold.instance) {
      still[key] = {info.hold.instance, answered};
    } else if (now - before->second.since_boot_ms < lease_ms_) {
      still[key] = before->second;
    } else {
      MJ_CHECK(mark_runner(store, context, info.runner.id, kRunnerLost));
      log(LogLevel::warn, "worker",
          "context {}: runner {} is lost: process {} on {} has been silent for more than a lease", context,
          info.runner.id, info.hold.pid, info.hold.host);
    }
  }
  std::erase_if(silent_, [context](const auto& entry) { return entry.first.first == context; });
  silent_.merge(still);
  return {};
}

}  // namespace mycojobs
