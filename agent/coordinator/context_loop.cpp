#include "coordinator/context_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "flows/plan_limits.h"
#include "flows/schedules.h"
#include "store/acl_context.h"

namespace mycojobs {
namespace {

// Interval at which a coordinator that waits for the leadership tries to acquire it.
constexpr std::uint64_t kFlowCheckMs = 500;

}  // namespace

Result<void> Leadership::renew(FlowStore& store) {
  const std::uint64_t now = clock_.boot_ms();
  const bool had = is_leader();
  if (!had && leads_) {
    log(LogLevel::warn, "coordinator",
        "context {}: lost leadership: the process was stopped or the store was unavailable for a whole lease",
        context_);
    leads_ = false;
    next_boot_ms_ = now;
  }
  if (now < next_boot_ms_) return {};
  auto ours = store.acquire_leadership(context_, instance_, where_, lease_ms_);
  if (!ours) return tl::unexpected<Error>(std::move(ours).error());  // The next round tries again.
  next_boot_ms_ = clock_.boot_ms() + std::min<std::uint64_t>(lease_ms_ / 4, kFlowCheckMs);
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

bool Leadership::was_acquired() { return std::exchange(newly_, false); }

void Leadership::release(FlowStore& store) {
  if (!is_leader()) return;
  leads_ = false;
  if (auto done = store.release_leadership(context_, instance_); !done) {
    log(LogLevel::info, "coordinator", "context {}: leadership was not released: {}", context_, done.error().message);
  }
}

namespace {

constexpr std::uint32_t kAtOnce = 64;      // maximum number of flows of one round, before the lease is renewed again
constexpr std::uint64_t kMaxMs = 1000;     // maximum time between two rounds
constexpr std::uint64_t kTickMs = 200;     // interval of the timers of jobs
constexpr std::uint64_t kRetireMs = 5000;  // interval of the retention
// Interval of the recovery of all flows. Recovery finds flows that lost their due time or events because another client
// deleted keys. Recovery takes at most one part in kRecoverShare of the time.
constexpr std::uint64_t kRecoverMs = 60000, kRecoverShare = 20;
constexpr std::uint64_t kMinBackoffMs = 1000, kMaxBackoffMs = 30000;
constexpr std::size_t kMaxBackoffs = 1000;

}  // namespace

ContextLoop::ContextLoop(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, const Clock& clock,
                         ContextSettings settings)
    : flows_(std::move(flows)),
      store_(std::move(store)),
      clock_(clock),
      settings_(std::move(settings)),
      leadership_(clock, settings_.context, settings_.instance, settings_.where, settings_.lease_ms),
      gauges_(settings_.metrics, settings_.context),
      next_retire_(settings_.retention_ms > 0 ? 0 : UINT64_MAX) {}

Result<std::uint64_t> ContextLoop::round() {
  // Also set after an error of the store, so that the metrics of the context are not published beyond the lease.
  auto kept = leadership_.renew(*flows_);
  gauges_.set_leader(leadership_.is_leader());
  if (!kept) return tl::unexpected<Error>(std::move(kept).error());
  const auto until = [&](std::uint64_t moment) {
    const std::uint64_t now = clock_.boot_ms();
    return moment > now ? moment - now : 0;
  };
  if (!leadership_.is_leader()) return std::min(kMaxMs, std::max<std::uint64_t>(1, until(leadership_.next_boot_ms())));
  if (leadership_.was_acquired()) {
    // The previous leader has advanced flows, so the cached runs are old.
    cache_.forget_runs();
    is_newly_leader_ = true;
    next_recover_ = 0;
    next_schedules_ = 0;
  }
  if (const std::uint64_t now = clock_.boot_ms();
      is_newly_leader_ ? next_recover_ == 0 : !recovering_ && now >= next_recover_) {
    recovering_ = true;
    recovering_since_ = now;
    recovered_ = 0;
    gauges_.on_sweep_begin();
    next_recover_ = now + kRecoverMs;
  }
  // Due flows come before recovery, so that the recovery of many flows does not delay flows that are active.
  std::uint64_t next_ms = kMaxMs;
  MJ_CHECK(advance_hinted_flows());
  MJ_TRY(more, advance_due_flows(next_ms));
  if (recovering_) MJ_CHECK(recover_batch());
  MJ_CHECK(run_maintenance(clock_.boot_ms()));
  if (more || recovering_) return 0;
  for (const std::uint64_t moment : {next_schedules_, next_tick_, next_retire_, leadership_.next_boot_ms()}) {
    next_ms = std::min(next_ms, until(moment));
  }
  return next_ms;
}

Result<void> ContextLoop::recover_batch() {
  MJ_TRY(flows, flows_->active(settings_.context, recovered_, kAtOnce));
  for (const Id flow : flows) {
    MJ_CHECK(advance_flow(flow, true));
    recovered_ = flow;
  }
  if (flows.size() < kAtOnce) {
    recovering_ = false;
    gauges_.on_sweep_end();
    const std::uint64_t now = clock_.boot_ms();
    next_recover_ = now + std::max(kRecoverMs, (now - recovering_since_) * kRecoverShare);
    if (is_newly_leader_ && recovered_ > 0)
      log(LogLevel::info, "coordinator", "context {}: all flows were scanned", settings_.context);
    is_newly_leader_ = false;
  }
  return {};
}

Result<void> ContextLoop::advance_hinted_flows() {
  for (const Id flow : std::exchange(hinted_, {})) {
    if (!leadership_.is_leader()) return {};
    if (cache_.is_cached(settings_.context, flow) && !backoffs_.contains(flow)) MJ_CHECK(advance_flow(flow, false));
  }
  return {};
}

// Returns true if more flows may be due.
Result<bool> ContextLoop::advance_due_flows(std::uint64_t& next_ms) {
  const auto max = kAtOnce + static_cast<std::uint32_t>(backoffs_.size());
  MJ_TRY(due, flows_->due(settings_.context, max));
  if (due.second > 0) next_ms = std::min(next_ms, due.second);
  for (const Id flow : due.first) {
    if (const auto off = backoffs_.find(flow); off != backoffs_.end() && off->second.until > clock_.boot_ms()) continue;
    MJ_CHECK(advance_flow(flow, false));
    if (!leadership_.is_leader()) return true;
  }
  return due.first.size() == max;
}

Result<void> ContextLoop::advance_flow(Id flow, bool recover) {
  ProgressRequest request;
  request.context = settings_.context;
  request.flow = flow;
  request.due = true;
  request.recover = recover;
  auto done = progress(*flows_, cache_, request);
  if (done) {
    if (!backoffs_.empty()) backoffs_.erase(flow);
    gauges_.update_flow(flow, done->gates);
    return {};
  }
  if (done.error().code == Code::unavailable || done.error().code == Code::denied) {
    return tl::unexpected<Error>(std::move(done).error());
  }
  back_off(flow, done.error());
  return {};
}

// Retries the flow after a growing pause. The due time in the store stays, so that a repaired flow continues without a
// notification.
void ContextLoop::back_off(Id flow, const Error& error) {
  if (backoffs_.size() > kMaxBackoffs) backoffs_.clear();
  Backoff& off = backoffs_[flow];
  off.pause = std::clamp(off.pause * 2, kMinBackoffMs, kMaxBackoffMs);
  off.until = clock_.boot_ms() + off.pause;
  if (off.why == error.message) return;
  off.why = error.message;
  log(LogLevel::error, "coordinator", "context {}: flow {} waits: {}", settings_.context, flow, error.message);
}

// Checks the current permissions of the caller and the current limits of the context, which may have changed since the
// schedule was created.
Result<void> ContextLoop::check_start(Id caller, const FlowPlan& plan) {
  MJ_TRY(place, read_acl_context(*store_, settings_.context, EntryPoint::command));
  MJ_CHECK(check_permission(caller, Action::create, place, {.name = "flows"}));
  return check_jobs(plan, settings_.limits);
}

Result<void> ContextLoop::run_maintenance(std::uint64_t now) {
  if (now >= next_schedules_) {
    auto next = run_schedules(*flows_, cache_, settings_.context,
                              [this](Id caller, const FlowPlan& plan) { return check_start(caller, plan); });
    if (!next && next.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(next).error());
    if (!next)
      log(LogLevel::error, "coordinator", "context {}: schedules: {}", settings_.context, next.error().message);
    next_schedules_ = now + std::clamp<std::uint64_t>(next.value_or(kMaxMs), 1, kMaxMs);
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
  return gauges_.refresh_gauges(*store_, now);
}

}  // namespace mycojobs
