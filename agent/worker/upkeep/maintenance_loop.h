// Runs the periodic work of maintenance.h for every context, with a store connection of its own, so that slow work
// delays no claim. A loop of base/loop_thread.h.
#pragma once

#include <atomic>
#include <memory>

#include "base/liveness_counter.h"
#include "base/loop_thread.h"
#include "store/store_health.h"
#include "worker/upkeep/maintenance.h"

namespace mycojobs {

class MaintenanceLoop : public TimedLoop {
 public:
  MaintenanceLoop(Store&, const Clock&, StoreHealth&, WorkerSettings);
  // Wakes the loop, since work may be due earlier than expected. Thread-safe.
  void run_soon();
  const LivenessCounter& liveness() const { return liveness_; }  // Thread-safe.

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  Store& store_;
  StoreHealth& health_;
  WorkerSettings settings_;
  Maintenance maintenance_;
  ContextPauses pauses_;
  LivenessCounter liveness_;
  std::atomic<bool> early_tick_requested_{false};
};

}  // namespace mycojobs
