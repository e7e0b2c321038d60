// Deletes the objects of the object storage that no record of a job lists: after the retention of a job, and after an
// upload whose job was delivered again. Also aborts incomplete uploads of ended jobs. Works in rounds of small steps. A
// round lists all objects of a context, in pages of at most 1,000. The objects of jobs that wait or run are not
// deleted. A loop of base/loop_thread.h.
//
// A copy of the database knows the same bucket, but not the later jobs of the original. So only the agent whose id is
// in the marker `owner` of the bucket deletes, and the id is not in Redis, but in a file of its state_dir:
//
//   no marker                    write the marker; delete nothing in this round
//   marker of this agent         write the current time into the marker; delete
//   marker of another agent      delete nothing, unless that agent has not written it for seven days: then as without
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
  static constexpr std::uint64_t kMinObjectAgeMs = 60'000;                // younger objects are not deleted
  static constexpr std::uint64_t kMaxOwnerSilenceMs = 7ULL * 86'400'000;  // then another agent becomes the owner

  // interval_ms: minimum time between the starts of two rounds of a context, and a limit of kMinObjectAgeMs. The store
  // must outlive this object.
  BucketSweep(RecordStore&, std::shared_ptr<const ArtifactBucket>, const Clock&, std::vector<Id> contexts,
              std::string state_dir, std::uint64_t interval_ms);
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
    std::size_t deleted_objects = 0, failed_objects = 0;
    std::string failure = {};  // the first refused deletion
  };
  Result<void> run_step(Id context, Round&, std::uint64_t now_ms);
  Result<void> begin_round(Id context, Round&);
  Result<bool> check_owner(const ArtifactBucket::Area&);
  Result<void> list_objects(Id context, Round&);
  Result<void> check_objects(Id context, Round&);
  Result<void> delete_object(Id context, Round&, const ArtifactBucket::ListedObject&);
  void log_round(Id context, const Round&) const;

  RecordStore& store_;
  const std::shared_ptr<const ArtifactBucket> bucket_;
  const Clock& clock_;
  const std::string state_dir_;
  const std::uint64_t interval_ms_;
  std::map<Id, std::string> owners_;  // latest other owner that was logged
  std::map<Id, Round> rounds_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace mycojobs
