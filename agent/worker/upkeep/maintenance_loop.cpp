#include "worker/upkeep/maintenance_loop.h"

#include <algorithm>
#include <utility>

namespace mycojobs {
namespace {

// The work of many contexts is done in bursts with pauses, so that it does not delay a job of one of them.
constexpr std::uint64_t kMaxBurstMs = 2, kBurstPauseMs = 10;

}  // namespace

MaintenanceLoop::MaintenanceLoop(Store& store, const Clock& clock, StoreHealth& health, WorkerSettings settings,
                                 Maintenance::OnPrerequisites on_prerequisites)
    : store_(store),
      clock_(clock),
      health_(health),
      settings_(std::move(settings)),
      maintenance_(clock, settings_, std::move(on_prerequisites)),
      pauses_(clock) {}

void MaintenanceLoop::run_soon(Id context) {
  {
    const std::lock_guard lock(mutex_);
    if (!early_ticks_.insert(context).second) return;
  }
  wake();
}

// Wakes the loop at most once a second, since the loop notices every job of an active context in time.
void MaintenanceLoop::on_activity(Id context) {
  constexpr std::uint64_t kIntervalMs = 1000;
  const std::uint64_t now = clock_.boot_ms();
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t& reported_ms = reported_boot_ms_[context];
    if (reported_ms != 0 && now < reported_ms + kIntervalMs) return;
    reported_ms = now;
    active_.insert(context);
  }
  wake();
}

std::uint64_t MaintenanceLoop::run_once() {
  {
    const std::lock_guard lock(mutex_);
    for (const Id context : std::exchange(active_, {})) maintenance_.on_activity(context);
    for (const Id context : std::exchange(early_ticks_, {})) maintenance_.request_early_tick(context);
  }
  std::uint64_t pause = 1000;
  const std::uint64_t start = clock_.boot_ms();
  const std::size_t first = next_index_;
  for (std::size_t i = 0; i < settings_.contexts.size(); ++i) {
    if (stopped()) break;
    next_index_ = (first + i) % settings_.contexts.size();
    if (clock_.boot_ms() >= start + kMaxBurstMs) return kBurstPauseMs;
    const Id context = settings_.contexts[next_index_];
    liveness_.mark_progress();  // each context may wait for a server of its own
    if (pauses_.can_try(context)) {
      auto next = maintenance_.run_due_work(store_, context);
      if (next) {
        pauses_.on_success(context);
        pause = std::min(pause, *next);
        continue;
      }
      health_.on_failure(context, "maintaining jobs", next.error());
      if (next.error().code == Code::unavailable) maintenance_.clear_observations(context);
      pauses_.on_failure(context);
    }
    pause = std::min(pause, pauses_.remaining_ms(context));
  }
  return pause;
}

}  // namespace mycojobs
