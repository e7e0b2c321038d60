#include "coordinator/context_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/schedules.h"
#include "store/place.h"

namespace mycojobs {
namespace {

// Interval at which a coordinator that waits for the leadership tries to acquire it.
constexpr std::uint64_t kLookMs = 500;

}  // namespace

Result<void> Leadership::keep(FlowStore& store) {
  const std::uint64_t now = clock_.boot_ms();
  const bool had = leads();
  if (!had && leads_) {
    log(LogLevel::warn, "coordinator",
        "context {}: lost leadership: the process was stopped or the store was unavailable for a whole lease",
        context_);
    leads_ = false;
    next_boot_ms_ = now;
  }
  if (now < next_boot_ms_) return {};
  auto ours = store.lead(context_, instance_, where_, lease_ms_);
  if (!ours) return tl::unexpected<Error>(std::move(ours).error());  // The next round tries again.
  next_boot_ms_ = clock_.boot_ms() + std::min<std::uint64_t>(lease_ms_ / 4, kLookMs);
  if (*ours) {
    // The lease starts before the request is sent, so that the local end of the lease is not later than the one in the
    // store.
    until_boot_ms_ = now + lease_ms_;
    next_boot_ms_ = now + lease_ms_ / 3;
  }
  if (*ours != had) {
    log(LogLevel::info, "coordinator", "context {}: {}", context_,
        *ours ? "acquired leadership" : "another coordinator is the leader");
    newly_ = *ours;
  }
  leads_ = *ours;
  return {};
}

bool Leadership::newly() { return std::exchange(newly_, false); }

void Leadership::give_back(FlowStore& store) {
  if (!leads()) return;
  leads_ = false;
  if (auto done = store.stop_leading(context_, instance_); !done) {
    log(LogLevel::info, "coordinator", "context {}: leadership was not released: {}", context_, done.error().message);
  }
}

namespace {

constexpr std::uint32_t kAtOnce = 64;      // maximum number of flows of one round, before the lease is renewed again
constexpr std::uint64_t kMostMs = 1000;    // maximum time between two rounds
constexpr std::uint64_t kTickMs = 200;     // interval of the timers of jobs
constexpr std::uint64_t kRetireMs = 5000;  // interval of the retention
// Interval of the recovery of all flows. Recovery finds flows that lost their due time or events because another client
// deleted keys. Recovery takes at most one part in kRecoverShare of the time.
constexpr std::uint64_t kRecoverMs = 60000, kRecoverShare = 20;
constexpr std::uint64_t kLeastPutOffMs = 1000, kMostPutOffMs = 30000;
constexpr std::size_t kMostPutOff = 1000;

}  // namespace

ContextRounds::ContextRounds(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, const Clock& clock,
                             ContextSettings settings)
    : flows_(std::move(flows)),
      store_(std::move(store)),
      clock_(clock),
      settings_(std::move(settings)),
      leadership_(clock, settings_.context, settings_.instance, settings_.where, settings_.lease_ms),
      gauges_(settings_.metrics, settings_.context),
      next_retire_(settings_.retention_ms > 0 ? 0 : UINT64_MAX) {}

Result<std::uint64_t> ContextRounds::round() {
  // Also set after an error of the store, so that the metrics of the context are not published beyond the lease.
  auto kept = leadership_.keep(*flows_);
  gauges_.leads(leadership_.leads());
  if (!kept) return tl::unexpected<Error>(std::move(kept).error());
  const auto until = [&](std::uint64_t moment) {
    const std::uint64_t now = clock_.boot_ms();
    return moment > now ? moment - now : 0;
  };
  if (!leadership_.leads()) return std::min(kMostMs, std::max<std::uint64_t>(1, until(leadership_.next_boot_ms())));
  if (leadership_.newly()) {
    // The previous leader has advanced flows, so the cached runs are old.
    cache_.forget_runs();
    ours_newly_ = true;
    next_recover_ = 0;
    next_schedules_ = 0;
  }
  if (const std::uint64_t now = clock_.boot_ms();
      ours_newly_ ? next_recover_ == 0 : !recovering_ && now >= next_recover_) {
    recovering_ = true;
    recovering_since_ = now;
    recovered_ = 0;
    gauges_.sweep_begins();
    next_recover_ = now + kRecoverMs;
  }
  // Due flows come before recovery, so that the recovery of many flows does not delay flows that are active.
  std::uint64_t next_ms = kMostMs;
  MJ_CHECK(move_hinted());
  MJ_TRY(more, move_due(next_ms));
  if (recovering_) MJ_CHECK(recover_some());
  MJ_CHECK(look_after(clock_.boot_ms()));
  if (more || recovering_) return 0;
  for (const std::uint64_t moment : {next_schedules_, next_tick_, next_retire_, leadership_.next_boot_ms()}) {
    next_ms = std::min(next_ms, until(moment));
  }
  return next_ms;
}

Result<void> ContextRounds::recover_some() {
  MJ_TRY(flows, flows_->active(settings_.context, recovered_, kAtOnce));
  for (const Id flow : flows) {
    MJ_CHECK(move(flow, true));
    recovered_ = flow;
  }
  if (flows.size() < kAtOnce) {
    recovering_ = false;
    gauges_.sweep_ends();
    const std::uint64_t now = clock_.boot_ms();
    next_recover_ = now + std::max(kRecoverMs, (now - recovering_since_) * kRecoverShare);
    if (ours_newly_ && recovered_ > 0)
      log(LogLevel::info, "coordinator", "context {}: all flows were scanned", settings_.context);
    ours_newly_ = false;
  }
  return {};
}

Result<void> ContextRounds::move_hinted() {
  for (const Id flow : std::exchange(hinted_, {})) {
    if (!leadership_.leads()) return {};
    if (cache_.holds(settings_.context, flow) && !put_off_.contains(flow)) MJ_CHECK(move(flow, false));
  }
  return {};
}

// Returns true if more flows may be due.
Result<bool> ContextRounds::move_due(std::uint64_t& next_ms) {
  const auto max = kAtOnce + static_cast<std::uint32_t>(put_off_.size());
  MJ_TRY(due, flows_->due(settings_.context, max));
  if (due.second > 0) next_ms = std::min(next_ms, due.second);
  for (const Id flow : due.first) {
    if (const auto off = put_off_.find(flow); off != put_off_.end() && off->second.until > clock_.boot_ms()) continue;
    MJ_CHECK(move(flow, false));
    if (!leadership_.leads()) return true;
  }
  return due.first.size() == max;
}

Result<void> ContextRounds::move(Id flow, bool recover) {
  ProgressRequest request;
  request.context = settings_.context;
  request.flow = flow;
  request.due = true;
  request.recover = recover;
  auto done = progress(*flows_, cache_, request);
  if (done) {
    if (!put_off_.empty()) put_off_.erase(flow);
    gauges_.moved(flow, done->gates);
    return {};
  }
  if (done.error().code == Code::unavailable || done.error().code == Code::denied) {
    return tl::unexpected<Error>(std::move(done).error());
  }
  put_off(flow, done.error());
  return {};
}

// Retries the flow after a growing pause. The due time in the store stays, so that a repaired flow continues without a
// notification.
void ContextRounds::put_off(Id flow, const Error& error) {
  if (put_off_.size() > kMostPutOff) put_off_.clear();
  PutOff& off = put_off_[flow];
  off.pause = std::clamp(off.pause * 2, kLeastPutOffMs, kMostPutOffMs);
  off.until = clock_.boot_ms() + off.pause;
  if (off.why == error.message) return;
  off.why = error.message;
  log(LogLevel::error, "coordinator", "context {}: flow {} waits: {}", settings_.context, flow, error.message);
}

// Checks the current permissions of the caller and the current limits of the context, which may have changed since the
// schedule was created.
Result<void> ContextRounds::may_start(Id caller, const FlowPlan& plan) {
  MJ_TRY(place, read_place(*store_, settings_.context, WayIn::command));
  MJ_CHECK(may(caller, Action::create, place, {.name = "flows"}));
  return check_jobs(plan, settings_.limits);
}

Result<void> ContextRounds::look_after(std::uint64_t now) {
  if (now >= next_schedules_) {
    auto next = run_schedules(*flows_, cache_, settings_.context,
                              [this](Id caller, const FlowPlan& plan) { return may_start(caller, plan); });
    if (!next && next.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(next).error());
    if (!next)
      log(LogLevel::error, "coordinator", "context {}: schedules: {}", settings_.context, next.error().message);
    next_schedules_ = now + std::clamp<std::uint64_t>(next.value_or(kMostMs), 1, kMostMs);
  }
  if (now >= next_tick_) {
    TickRequest request;
    request.retention_ms = 0;  // The retention of jobs is a setting of the agents.
    MJ_TRY(reply, store_->tick(settings_.context, request));
    next_tick_ = now + (reply.more ? 5 : reply.next_due_ms == 0 ? kTickMs : std::min(kTickMs, reply.next_due_ms));
  }
  if (now >= next_retire_) {
    MJ_TRY(gone, flows_->retire(settings_.context, settings_.retention_ms, 100));
    next_retire_ = now + (gone >= 100 ? 0 : kRetireMs);
  }
  return gauges_.look(*store_, now);
}

}  // namespace mycojobs
