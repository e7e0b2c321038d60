#include "coordinator/context_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "flows/plan_limits.h"
#include "flows/schedules.h"
#include "store/acl_context.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxRoundFlows = 64;  // bounds a round, since the lease is renewed only between two rounds
// Interval between two ticks of the store. A tick queues delayed jobs and retries, and ends jobs that exceeded their
// queue time-out. While ticks have no work, the interval grows to the maximum; agents tick the contexts that they
// serve.
constexpr std::uint64_t kTickIntervalMs = 200, kMaxTickIntervalMs = 2000;
// Interval at which ended flows are deleted after their retention.
constexpr std::uint64_t kRetireIntervalMs = 5000;
// Interval of the recovery of all flows. Recovery finds flows that lost their due time or events because another client
// deleted keys. The interval is at least kRecoverIntervalFactor times the duration of the previous recovery.
constexpr std::uint64_t kRecoverIntervalMs = 60000, kRecoverIntervalFactor = 20;
constexpr std::uint64_t kMinBackoffMs = 1000, kMaxBackoffMs = 30000;
constexpr std::size_t kMaxBackoffs = 1000;

}  // namespace

ContextLoop::ContextLoop(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, const Clock& clock,
                         ContextSettings settings)
    : flows_(std::move(flows)),
      store_(std::move(store)),
      clock_(clock),
      settings_(std::move(settings)),
      leadership_(clock, settings_.context, settings_.instance, settings_.location, settings_.lease_ms),
      gauges_(settings_.metrics, settings_.context),
      next_flow_retirement_ms_(settings_.retention.flow_ms > 0 ? 0 : UINT64_MAX) {}

Result<std::uint64_t> ContextLoop::run_round(std::uint64_t max_idle_ms) {
  auto renewed = leadership_.renew(*flows_);
  // Also set after an error of the store, so that the metrics of the context are not published beyond the lease.
  gauges_.set_leader(leadership_.is_leader());
  if (!renewed) return tl::unexpected<Error>(std::move(renewed).error());
  const auto ms_until = [&](std::uint64_t time_ms) {
    const std::uint64_t now = clock_.boot_ms();
    return time_ms > now ? time_ms - now : 0;
  };
  if (!leadership_.is_leader())
    return std::min(kMaxPollIntervalMs, std::max<std::uint64_t>(1, ms_until(leadership_.next_renewal_boot_ms())));
  if (leadership_.pop_acquired()) {
    // The previous leader has advanced flows, so the cached runs are old.
    cache_.clear_runs();
    is_first_recovery_pending_ = true;
    next_recovery_ms_ = 0;
    next_due_flows_ms_ = next_schedules_ms_ = next_store_tick_ms_ = 0;
  }
  if (const std::uint64_t now = clock_.boot_ms();
      is_first_recovery_pending_ ? next_recovery_ms_ == 0 : !is_recovering_ && now >= next_recovery_ms_) {
    is_recovering_ = true;
    recovery_start_ms_ = now;
    last_recovered_ = 0;
    gauges_.on_recovery_begin();
    next_recovery_ms_ = now + kRecoverIntervalMs;
  }
  // Due flows come before recovery, so that the recovery of many flows does not delay flows that are active.
  MJ_CHECK(advance_hinted_flows());
  bool has_more = false;
  if (max_idle_ms <= kMaxPollIntervalMs || clock_.boot_ms() >= next_due_flows_ms_) {
    std::uint64_t ms_until_next_due = backoffs_.empty() ? max_idle_ms : std::min(max_idle_ms, kMaxPollIntervalMs);
    MJ_TRY(is_full, advance_due_flows(ms_until_next_due));
    has_more = is_full;
    next_due_flows_ms_ = clock_.boot_ms() + ms_until_next_due;
  }
  if (is_recovering_) MJ_CHECK(recover_batch());
  next_schedules_ms_ = std::min(next_schedules_ms_, clock_.boot_ms() + max_idle_ms);  // hints may have been lost since
  MJ_CHECK(run_maintenance(clock_.boot_ms(), max_idle_ms));
  if (has_more || is_recovering_) return 0;
  return ms_until(std::min({next_due_flows_ms_, next_schedules_ms_, next_store_tick_ms_, next_flow_retirement_ms_,
                            leadership_.next_renewal_boot_ms()}));
}

Result<void> ContextLoop::recover_batch() {
  MJ_TRY(flows, flows_->active_flows(settings_.context, last_recovered_, kMaxRoundFlows));
  for (const Id flow : flows) {
    MJ_CHECK(advance_flow(flow, true));
    last_recovered_ = flow;
  }
  if (flows.size() < kMaxRoundFlows) {
    is_recovering_ = false;
    gauges_.on_recovery_end();
    const std::uint64_t now = clock_.boot_ms();
    next_recovery_ms_ = now + std::max(kRecoverIntervalMs, (now - recovery_start_ms_) * kRecoverIntervalFactor);
    if (is_first_recovery_pending_ && last_recovered_ > 0)
      log(LogLevel::info, "coordinator", "context {}: all flows were scanned", settings_.context);
    is_first_recovery_pending_ = false;
  }
  return {};
}

Result<void> ContextLoop::advance_hinted_flows() {
  for (const Id flow : std::exchange(hinted_flows_, {})) {
    if (!leadership_.is_leader()) return {};
    if (cache_.is_cached(settings_.context, flow) && !backoffs_.contains(flow)) MJ_CHECK(advance_flow(flow, false));
  }
  return {};
}

// Advances the due flows. Lowers ms_until_next_round to the time until the next flow is due. Returns true if more flows
// may be due.
Result<bool> ContextLoop::advance_due_flows(std::uint64_t& ms_until_next_round) {
  const auto max_flows = kMaxRoundFlows + static_cast<std::uint32_t>(backoffs_.size());
  MJ_TRY(due, flows_->due_flows(settings_.context, max_flows));
  const auto& [due_flow_ids, ms_until_next_due] = due;
  if (ms_until_next_due > 0) ms_until_next_round = std::min(ms_until_next_round, ms_until_next_due);
  for (const Id flow : due_flow_ids) {
    if (const auto backoff = backoffs_.find(flow);
        backoff != backoffs_.end() && backoff->second.end_ms > clock_.boot_ms())
      continue;
    MJ_CHECK(advance_flow(flow, false));
    if (!leadership_.is_leader()) return true;
  }
  return due_flow_ids.size() == max_flows;
}

Result<void> ContextLoop::advance_flow(Id flow, bool must_check_jobs) {
  ProgressRequest request;
  request.context = settings_.context;
  request.flow = flow;
  request.is_due = true;
  request.must_check_jobs = must_check_jobs;
  auto advanced = advance_run(*flows_, cache_, request);
  if (advanced) {
    if (!backoffs_.empty()) backoffs_.erase(flow);
    gauges_.update_flow(flow, advanced->waiting_gate_count);
    return {};
  }
  if (advanced.error().code == Code::unavailable || advanced.error().code == Code::denied) {
    return tl::unexpected<Error>(std::move(advanced).error());
  }
  defer_flow(flow, advanced.error());
  return {};
}

// Retries the flow after a growing pause. The due time in the store stays, so that a repaired flow continues without a
// notification.
void ContextLoop::defer_flow(Id flow, const Error& error) {
  if (backoffs_.size() > kMaxBackoffs) backoffs_.clear();
  Backoff& backoff = backoffs_[flow];
  backoff.pause_ms = std::clamp(backoff.pause_ms * 2, kMinBackoffMs, kMaxBackoffMs);
  backoff.end_ms = clock_.boot_ms() + backoff.pause_ms;
  if (backoff.reason == error.message) return;
  backoff.reason = error.message;
  log(LogLevel::error, "coordinator", "context {}: flow {} waits: {}", settings_.context, flow, error.message);
}

// Checks the current permissions of the caller and the current limits of the context, which may have changed since the
// schedule was created.
Result<void> ContextLoop::check_scheduled_start(Id caller, const FlowPlan& plan) {
  MJ_TRY(acl_context, read_acl_context(*store_, settings_.context, EntryPoint::command));
  MJ_CHECK(check_permission(caller, Action::create, acl_context, {.name = "flows"}));
  return check_jobs(plan, settings_.limits);
}

// Other processes can add work that is due before the next tick, so the interval grows only while ticks have no work.
Result<void> ContextLoop::tick_store(std::uint64_t now, std::uint64_t max_idle_ms) {
  TickRequest request;
  request.retention = Retention::same_for_all(0);  // The retention of jobs is a setting of the agents.
  MJ_TRY(reply, store_->tick(settings_.context, request));
  const bool is_next_soon = reply.next_due_ms > 0 && reply.next_due_ms <= kMaxTickIntervalMs;
  const bool has_work = reply.has_more || is_next_soon ||
                        reply.queued + reply.woken_dependents + reply.missing_records + reply.timed_out > 0;
  const bool is_interval_fixed = has_work || max_idle_ms <= kMaxPollIntervalMs;
  tick_interval_ms_ =
      is_interval_fixed ? kTickIntervalMs : std::clamp(tick_interval_ms_ * 2, kTickIntervalMs, kMaxTickIntervalMs);
  next_store_tick_ms_ = now + (reply.has_more           ? 5
                               : reply.next_due_ms == 0 ? tick_interval_ms_
                                                        : std::min(tick_interval_ms_, reply.next_due_ms));
  return {};
}

Result<void> ContextLoop::run_maintenance(std::uint64_t now, std::uint64_t max_idle_ms) {
  if (now >= next_schedules_ms_) {
    auto next = run_schedules(*flows_, cache_, settings_.context,
                              [this](Id caller, const FlowPlan& plan) { return check_scheduled_start(caller, plan); });
    if (!next && next.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(next).error());
    if (!next)
      log(LogLevel::error, "coordinator", "context {}: schedules: {}", settings_.context, next.error().message);
    next_schedules_ms_ = now + std::clamp<std::uint64_t>(next.value_or(kMaxPollIntervalMs), 1, max_idle_ms);
  }
  if (now >= next_store_tick_ms_) MJ_CHECK(tick_store(now, max_idle_ms));
  if (now >= next_flow_retirement_ms_) {
    MJ_TRY(retired_count, flows_->retire(settings_.context, settings_.retention.flow_ms, 100));
    next_flow_retirement_ms_ = now + (retired_count >= 100 ? 0 : std::max(kRetireIntervalMs, max_idle_ms));
  }
  return gauges_.refresh_gauges(*store_, now);
}

}  // namespace mycojobs
