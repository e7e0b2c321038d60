// Deletes the objects of the object storage that are not listed in the record of a job. Such objects remain after the
// retention of a job, and after the upload for a job that was delivered again. Also aborts incomplete uploads of ended
// jobs. The loop (base/loop_thread.h) works in rounds, which consist of small steps. A round lists all objects of a
// context, in pages of at most 1,000 objects. Objects of waiting and running jobs are not deleted.
//
// A copy of the database uses the same bucket, but does not contain the later jobs of the original, so an agent of the
// copy would delete their objects. Therefore objects are deleted only by the agent in the marker `owner` of the bucket.
// The id of an agent is in a file of state_dir and not in Redis, so that a copy of the database does not contain the
// id:
//
//   no marker                    write the marker; delete nothing in this round
//   marker of this agent         write the current time into the marker; delete objects
//   marker of another agent      delete nothing; if the time of the marker is older than seven days, as without a
//   marker
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
  static constexpr std::uint64_t kMinObjectAgeMs = 60'000;  // younger objects are not deleted
  static constexpr std::uint64_t kMaxOwnerSilenceMs =
      7ULL * 86'400'000;  // after this time, another agent becomes the owner

  // interval_ms: minimum time between the starts of two rounds of a context. If interval_ms is less than
  // kMinObjectAgeMs, it is also the minimum age of deleted objects. REQUIRES: the store outlives this object.
  BucketSweep(RecordStore&, std::shared_ptr<const ArtifactBucket>, const Clock&, std::vector<Id> contexts,
              std::string state_dir, std::uint64_t interval_ms);
  std::uint64_t run_once();  // Returns the time in ms until the next call.
  // Ends a running call of the object storage within a second. Called before the thread is stopped. Thread-safe.
  void cancel_calls() { is_cancelled_ = true; }

 private:
  struct Round {
    std::uint64_t start_ms = 0, next_ms = 0;           // Clock::boot_ms() of the start and of the next step
    std::vector<std::string> store_names;              // names that the round has not listed completely
    std::deque<ArtifactBucket::ListedObject> objects;  // listed objects that were not compared with the records
    std::string next_page;                             // argument of ArtifactBucket::list() for the last store name
    bool has_listed_uploads = false;                   // for the last store name
    std::size_t deleted_objects = 0, failed_objects = 0;
    std::string failure = {};  // error of the first failed deletion
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
  std::map<Id, std::string> logged_owners_;  // the other owner in the latest log message, by context
  std::map<Id, Round> rounds_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace mycojobs
