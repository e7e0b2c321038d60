// Keeps house (housekeeping.h) in every context, with a store connection of its own: whatever it meets, and however
// long that takes, no claim waits for it. Takes turns (base/turns.h).
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
  // Any thread: something may be due sooner than was known.
  void hurry();
  const Pulse& pulse() const { return pulse_; }  // any thread

  std::uint64_t turn();  // until the next one, ms

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
