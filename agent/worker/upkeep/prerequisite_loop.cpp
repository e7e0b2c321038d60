#include "worker/upkeep/prerequisite_loop.h"

#include <algorithm>
#include <utility>

namespace mycojobs {
namespace {

constexpr std::uint64_t kMinIdleIntervalMs = 5000;  // between two checks of a context without waiting jobs
constexpr std::uint64_t kReportValidMs = 3000;      // longer than the interval of the reports
constexpr std::uint64_t kMaxWaitMs = 1000;

}  // namespace

PrerequisiteChecker::PrerequisiteChecker(Store& store, const Clock& clock, StoreHealth& health, WorkerSettings settings)
    : clock_(clock),
      health_(health),
      contexts_(std::move(settings.contexts)),
      evaluator_(store, clock,
                 {CheckerRole::agent, std::move(settings.allowed_prerequisites), settings.prerequisites_timeout_ms}),
      pauses_(clock) {}

void PrerequisiteChecker::on_jobs_waiting(Id context) {
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = clock_.boot_ms();
    const auto [report, is_new] = reported_boot_ms_.try_emplace(context, now);
    const bool is_checked_often = !is_new && now < report->second + kReportValidMs;
    report->second = now;
    if (is_checked_often) return;
  }
  wake();
}

bool PrerequisiteChecker::has_waiting_jobs(Id context) {
  const std::lock_guard lock(mutex_);
  const auto report = reported_boot_ms_.find(context);
  return report != reported_boot_ms_.end() && clock_.boot_ms() < report->second + kReportValidMs;
}

std::uint64_t PrerequisiteChecker::get_next_check_ms(Id context) {
  if (!pauses_.can_try(context)) return clock_.boot_ms() + pauses_.remaining_ms(context);
  const auto check = last_checks_.find(context);
  if (check == last_checks_.end()) return 0;
  const std::uint64_t idle_interval_ms = get_safety_interval_ms(contexts_.size(), kMinIdleIntervalMs);
  return check->second.boot_ms + (has_waiting_jobs(context) ? check->second.interval_ms : idle_interval_ms);
}

void PrerequisiteChecker::wait_until_due(std::uint64_t ms) {
  evaluator_.wait(wakeup_fd(), static_cast<std::uint32_t>(ms),
                  [this](Id context, const Error& error) { on_failed(context, error); });
  clear_wakeup();
}

std::uint64_t PrerequisiteChecker::run_once() {
  for (const Id context : contexts_) {
    if (stopped() || clock_.boot_ms() < get_next_check_ms(context)) continue;
    if (auto delay_ms = evaluator_.check_due_jobs(context); delay_ms) {
      pauses_.on_success(context);
      last_checks_[context] = {clock_.boot_ms(), *delay_ms};
    } else {
      on_failed(context, delay_ms.error());
      pauses_.on_failure(context);
    }
  }
  const std::uint64_t now = clock_.boot_ms();
  std::uint64_t first_ms = now + kMaxWaitMs;
  for (const Id context : contexts_) first_ms = std::min(first_ms, get_next_check_ms(context));
  return first_ms > now ? first_ms - now : 0;
}

}  // namespace mycojobs
