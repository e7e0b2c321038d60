// Runs the cleanup of artifacts (artifacts/artifact_cleanup.h) for every context. It has a thread and a store
// connection of its own, since a disk can hang, and neither timers nor the leases of dead agents may wait for a disk. A
// loop of base/loop_thread.h.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "artifacts/artifact_cleanup.h"
#include "base/loop_thread.h"
#include "store/store_health.h"
#include "worker/worker_types.h"

namespace mycojobs {

class ArtifactCleanupLoop : public TimedLoop {
 public:
  ArtifactCleanupLoop(RecordStore&, const Clock&, StoreHealth&, const WorkerSettings&);
  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  void on_failed(Id context, const Error&);
  void publish_artifact_totals(Id context);

  RecordStore& store_;
  StoreHealth& health_;
  const WorkerSettings& settings_;
  std::vector<Id> contexts_;
  std::uint64_t interval_ms_;
  ArtifactCleanup cleanup_;
  std::map<Id, std::uint64_t> published_;  // field artifact_bytes of the runner's record, by context
};

}  // namespace mycojobs
