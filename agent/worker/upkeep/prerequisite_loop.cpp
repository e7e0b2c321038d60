#include "worker/upkeep/prerequisite_loop.h"

#include <algorithm>

namespace mycojobs {

PrerequisiteChecker::PrerequisiteChecker(Store& store, const Clock& clock, StoreHealth& health, WorkerSettings settings)
    : clock_(clock),
      health_(health),
      contexts_(std::move(settings.contexts)),
      evaluator_(store, clock,
                 {CheckerRole::agent, std::move(settings.allowed_prerequisites), settings.prerequisites_timeout_ms}),
      pauses_(clock) {}

void PrerequisiteChecker::wait_until_due(std::uint64_t ms) {
  evaluator_.wait(wakeup_fd(), static_cast<std::uint32_t>(ms),
                  [this](Id context, const Error& error) { on_failed(context, error); });
  clear_wakeup();
}

std::uint64_t PrerequisiteChecker::run_once() {
  for (const Id context : contexts_) {
    std::uint64_t& next_check = next_checks_boot_ms_[context];
    if (stopped() || clock_.boot_ms() < next_check) continue;
    if (auto delay_ms = evaluator_.check_due_jobs(context); delay_ms) {
      pauses_.on_success(context);
      next_check = clock_.boot_ms() + *delay_ms;
    } else {
      on_failed(context, delay_ms.error());
      pauses_.on_failure(context);
      next_check = clock_.boot_ms() + pauses_.remaining_ms(context);
    }
  }
  const std::uint64_t now = clock_.boot_ms();
  std::uint64_t first_ms = now + 1000;
  for (const auto& [context, check_ms] : next_checks_boot_ms_) first_ms = std::min(first_ms, check_ms);
  return first_ms > now ? first_ms - now : 0;
}

}  // namespace mycojobs
