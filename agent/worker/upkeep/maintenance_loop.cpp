#include "worker/upkeep/maintenance_loop.h"

#include <algorithm>

namespace mycojobs {

MaintenanceLoop::MaintenanceLoop(Store& store, const Clock& clock, StoreHealth& health, WorkerSettings settings)
    : store_(store), health_(health), settings_(std::move(settings)), maintenance_(clock, settings_), pauses_(clock) {}

void MaintenanceLoop::run_soon() {
  if (!early_tick_requested_.exchange(true)) wake();
}

std::uint64_t MaintenanceLoop::run_once() {
  if (early_tick_requested_.exchange(false)) maintenance_.request_early_tick();
  std::uint64_t pause = 1000;
  for (Id context : settings_.contexts) {
    if (stopped()) break;
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
