// Runs the periodic work of housekeeping.h for every context, with a store connection of its own, so that slow work
// delays no claim. A loop of base/turns.h.
#pragma once

#include <atomic>
#include <memory>

#include "base/pulse.h"
#include "base/turns.h"
#include "worker/housekeeping.h"
#include "worker/store_health.h"

namespace mycojobs {

class Housekeeper : public TurnTaker {
 public:
  Housekeeper(HouseStore, const Clock&, StoreHealth&, WorkerSettings);
  // Wakes the loop, since work may be due earlier than expected. Thread-safe.
  void hurry();
  const Pulse& pulse() const { return pulse_; }  // Thread-safe.

  std::uint64_t turn();  // Returns the time in ms until the next call.

 private:
  HouseStore store_;
  StoreHealth& health_;
  WorkerSettings settings_;
  Housekeeping housekeeping_;
  ContextPauses pauses_;
  Pulse pulse_;
  std::atomic<bool> hurry_{false};
};

}  // namespace mycojobs
