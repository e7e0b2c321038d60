// Keeps house (housekeeping.h) in every context, with a store connection of its own: whatever it meets, and however
// long that takes, no claim waits for it. Takes turns (base/turns.h).
#pragma once

#include <atomic>
#include <memory>

#include "base/mailbox.h"
#include "base/pulse.h"
#include "worker/artifact_sweep.h"
#include "worker/housekeeping.h"
#include "worker/store_health.h"

namespace mycojobs {

class Housekeeper {
 public:
  Housekeeper(HouseStore, const Clock&, StoreHealth&, StoreServers&, WorkerSettings);
  // Any thread: something may be due sooner than was known.
  void hurry();
  const Pulse& pulse() const { return pulse_; }  // any thread

  std::uint64_t turn();  // until the next one, ms
  void rest(std::uint64_t ms);
  void stop();
  bool stopped() const { return stop_; }

 private:
  Result<std::uint64_t> look_after(Id context);

  HouseStore store_;
  StoreHealth& health_;
  const Clock& clock_;
  WorkerSettings settings_;
  Housekeeping housekeeping_;
  ArtifactSweep sweep_;
  ContextPauses pauses_;
  Mailbox<int> wake_;
  Pulse pulse_;
  std::atomic<bool> hurry_{false}, stop_{false};
};

}  // namespace mycojobs
