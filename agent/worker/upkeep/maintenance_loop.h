// Runs the periodic work of maintenance.h for every context, with a store connection of its own, so that slow work
// delays no claim. A loop of base/loop_thread.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "base/liveness_counter.h"
#include "base/loop_thread.h"
#include "store/store_health.h"
#include "worker/upkeep/maintenance.h"

namespace mycojobs {

class MaintenanceLoop : public TimedLoop {
 public:
  MaintenanceLoop(
      Store&, const Clock&, StoreHealth&, WorkerSettings, Maintenance::OnPrerequisites on_prerequisites = [](Id) {});
  // Wakes the loop, since work of the context may be due earlier than expected. Thread-safe.
  void run_soon(Id context);
  // Reports that a job of the context was claimed or has ended, so that timers may be set soon. Thread-safe.
  void on_activity(Id context);
  const LivenessCounter& liveness() const { return liveness_; }  // Thread-safe.

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  Store& store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  Maintenance maintenance_;
  ContextPauses pauses_;
  LivenessCounter liveness_;
  std::size_t next_index_ = 0;  // index in settings_.contexts of the first context of the next call
  std::mutex mutex_;
  std::set<Id> early_ticks_, active_;             // contexts with a request since the last iteration; guarded by mutex_
  std::map<Id, std::uint64_t> reported_boot_ms_;  // time of the last wake-up by on_activity(); guarded by mutex_
};

}  // namespace mycojobs
