// Sweeps the artifacts (artifact_sweep.h) of every context, with a store connection of its own: their disk may stand
// still, and neither what time brings nor the lease of a dead agent waits for that. Takes turns (base/turns.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/turns.h"
#include "worker/artifact_sweep.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Sweeper : public TurnTaker {
 public:
  Sweeper(RecordStore&, const Clock&, StoreHealth&, const WorkerSettings&);
  std::uint64_t turn();  // until the next one, ms

 private:
  void failed(Id context, const Error&);

  RecordStore& store_;
  StoreHealth& health_;
  std::vector<Id> contexts_;
  std::uint64_t every_ms_;
  ArtifactSweep sweep_;
};

}  // namespace mycojobs
