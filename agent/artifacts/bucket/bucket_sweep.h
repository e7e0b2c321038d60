// Deletes the objects of the object storage that no record of a job lists: after the retention of a job, and after an
// upload whose job was delivered again. Also aborts incomplete uploads of ended jobs. Works in rounds of small steps. A
// round lists all objects of a context, in pages of at most 1,000. The objects of jobs that wait or run are not
// deleted. Several agents may sweep the same objects at the same time. A loop of base/loop_thread.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "artifacts/bucket/artifact_bucket.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "store/record_store.h"

namespace mycojobs {

class BucketSweep final : public TimedLoop {
 public:
  // interval_ms: minimum time between the starts of two rounds of a context. The store must outlive this object.
  BucketSweep(RecordStore&, std::shared_ptr<const ArtifactBucket>, const Clock&, std::vector<Id> contexts,
              std::uint64_t interval_ms);
  std::uint64_t run_once();  // Returns the time in ms until the next call.
  // Ends a running call of the object storage within a second. Call it before the thread is stopped. Thread-safe.
  void cancel_calls() { is_cancelled_ = true; }

 private:
  struct Round {
    std::uint64_t start_ms = 0, next_ms = 0;           // Clock::boot_ms() of the start and of the next step
    std::vector<std::string> store_names;              // names that the round has not listed completely
    std::deque<ArtifactBucket::ListedObject> objects;  // listed and not checked yet
    std::string next_page;                             // of the last of store_names
    bool has_listed_uploads = false;                   // of the last of store_names
    std::size_t deleted_objects = 0;
  };
  Result<void> run_step(Id context, Round&, std::uint64_t now_ms);
  Result<void> begin_round(Id context, Round&);
  Result<void> list_objects(Round&);
  Result<void> check_objects(Id context, Round&);

  RecordStore& store_;
  const std::shared_ptr<const ArtifactBucket> bucket_;
  const Clock& clock_;
  const std::uint64_t interval_ms_;
  std::map<Id, Round> rounds_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace mycojobs
