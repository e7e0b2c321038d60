#include "artifacts/bucket/bucket_sweep.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "artifacts/recorded_artifacts.h"
#include "base/log.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxCheckedJobs = 20;         // of one step; each requires a call of the store
constexpr std::size_t kMaxDeletedObjects = 50;      // of one step; each requires a call of the object storage
constexpr std::uint64_t kSweepStepIntervalMs = 50;  // pause between two steps
constexpr std::uint64_t kMinSweepPauseFactor = 9;   // minimum pause after a round, as a multiple of its duration

}  // namespace

BucketSweep::BucketSweep(RecordStore& store, std::shared_ptr<const ArtifactBucket> bucket, const Clock& clock,
                         std::vector<Id> contexts, std::uint64_t interval_ms)
    : store_(store), bucket_(std::move(bucket)), clock_(clock), interval_ms_(interval_ms) {
  for (const Id context : contexts) rounds_[context].next_ms = clock_.boot_ms() + interval_ms_ / 2;
}

std::uint64_t BucketSweep::run_once() {
  std::uint64_t pause_ms = interval_ms_;
  for (auto& [context, round] : rounds_) {
    if (stopped()) break;
    const std::uint64_t now_ms = clock_.boot_ms();
    if (now_ms >= round.next_ms) {
      if (auto result = run_step(context, round, now_ms); !result) {
        log(LogLevel::warn, "worker", "context {}: objects without a job stay: {}", context, result.error().message);
        round = Round{};
        round.next_ms = now_ms + interval_ms_;
      }
    }
    pause_ms = std::min(pause_ms, round.next_ms - std::min(round.next_ms, now_ms));
  }
  return pause_ms;
}

Result<void> BucketSweep::run_step(Id context, Round& round, std::uint64_t now_ms) {
  round.next_ms = now_ms + kSweepStepIntervalMs;
  if (round.start_ms == 0) {
    round.start_ms = now_ms;
    MJ_CHECK(begin_round(context, round));
  }
  if (!round.objects.empty()) return check_objects(context, round);
  if (!round.store_names.empty()) return list_objects(round);
  if (round.deleted_objects > 0)
    log(LogLevel::info, "worker", "context {}: {} objects deleted from {}: they belong to no job", context,
        round.deleted_objects, bucket_->url());
  const std::uint64_t next_ms =
      std::max(round.start_ms + interval_ms_, now_ms + (now_ms - round.start_ms) * kMinSweepPauseFactor);
  round = Round{};
  round.next_ms = next_ms;
  return {};
}

// Does not create a name in a context that has no artifacts.
Result<void> BucketSweep::begin_round(Id context, Round& round) {
  const auto fields = store_.load(context, kArtifactsKey);
  if (!fields && fields.error().code == Code::not_found) return {};
  MJ_TRY(store_names, artifact_store_names(store_, context));
  round.store_names = std::move(store_names);
  return {};
}

Result<void> BucketSweep::list_objects(Round& round) {
  const std::string& store_name = round.store_names.back();
  std::vector<ArtifactBucket::ListedObject> listed;
  if (!std::exchange(round.has_listed_uploads, true)) {
    MJ_TRY(uploads, bucket_->list_uploads(store_name, &is_cancelled_));
    listed = std::move(uploads);
  } else {
    MJ_TRY(page, bucket_->list(store_name, round.next_page, &is_cancelled_));
    listed = std::move(page.objects);
    round.next_page = std::move(page.next);
    if (round.next_page.empty()) {
      round.store_names.pop_back();
      round.has_listed_uploads = false;
    }
  }
  std::move(listed.begin(), listed.end(), std::back_inserter(round.objects));
  return {};
}

Result<void> BucketSweep::check_objects(Id context, Round& round) {
  std::size_t deleted = 0;
  for (std::size_t jobs = 0; jobs < kMaxCheckedJobs && deleted < kMaxDeletedObjects && !round.objects.empty(); ++jobs) {
    const std::string job_key = round.objects.front().key.job_key;
    MJ_TRY(recorded, read_recorded_artifacts(store_, context, job_key));
    while (!round.objects.empty() && round.objects.front().key.job_key == job_key && deleted < kMaxDeletedObjects) {
      const ArtifactBucket::ListedObject& object = round.objects.front();
      const bool is_listed = recorded && object.upload_id.empty() && recorded->hashes.contains(object.key.sha256);
      if (recorded && !is_listed) {
        MJ_CHECK(bucket_->remove(object, &is_cancelled_));
        ++deleted;
        ++round.deleted_objects;
      }
      round.objects.pop_front();
    }
  }
  return {};
}

}  // namespace mycojobs
