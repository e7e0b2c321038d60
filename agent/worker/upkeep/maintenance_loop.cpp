#include "worker/upkeep/maintenance_loop.h"

#include <algorithm>

namespace mycojobs {

MaintenanceLoop::MaintenanceLoop(MaintenanceStore store, const Clock& clock, StoreHealth& health,
                                 WorkerSettings settings)
    : store_(store), health_(health), settings_(std::move(settings)), housekeeping_(clock, settings_), pauses_(clock) {}

void MaintenanceLoop::run_soon() {
  if (!hurry_.exchange(true)) wake();
}

std::uint64_t MaintenanceLoop::run_once() {
  if (hurry_.exchange(false)) housekeeping_.hurry();
  std::uint64_t pause = 1000;
  for (Id context : settings_.contexts) {
    if (stopped()) break;
    liveness_.mark_progress();  // each context may wait for a server of its own
    if (pauses_.may_try(context)) {
      auto next = housekeeping_.look_after(store_, context);
      if (next) {
        pauses_.on_success(context);
        pause = std::min(pause, *next);
        continue;
      }
      health_.failed(context, "housekeeping of jobs", next.error());
      if (next.error().code == Code::unavailable) housekeeping_.clear_observations(context);
      pauses_.failed(context);
    }
    pause = std::min(pause, pauses_.left_ms(context));
  }
  return pause;
}

}  // namespace mycojobs
