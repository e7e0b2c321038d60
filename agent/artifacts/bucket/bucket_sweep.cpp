#include "artifacts/bucket/bucket_sweep.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/recorded_artifacts.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/random.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxCheckedJobs = 20;         // in one step; each job requires a call of the store
constexpr std::size_t kMaxDeletedObjects = 50;      // in one step; each object requires a call of the object storage
constexpr std::uint64_t kSweepStepIntervalMs = 50;  // pause between two steps
constexpr std::uint64_t kMinSweepPauseFactor = 9;   // minimum pause after a round, as a multiple of its duration
constexpr std::size_t kOwnerDigits = 32;

// Returns the id of this agent in markers. The first call creates the file with the id. All agents with the same
// state_dir have the same id. Error io.
Result<std::string> read_or_create_owner_id(const std::string& path) {
  for (;;) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    std::array<char, kOwnerDigits> id{};
    if (fd && ::read(fd.get(), id.data(), id.size()) == static_cast<ssize_t>(id.size()))
      return std::string(id.data(), id.size());
    if (fd || errno != ENOENT) return fail(Code::io, path + ": is not the id of an agent: delete the file");
    // The complete file is linked to its path, so that other agents do not read an incomplete id.
    const std::string new_path = path + '.' + random_hex(4), new_id = random_hex(kOwnerDigits / 2);
    {
      const Fd created(::open(new_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!created || ::write(created.get(), new_id.data(), new_id.size()) != static_cast<ssize_t>(new_id.size()))
        return fail(Code::io, new_path + ": " + errno_text(errno));
    }
    const bool is_linked = ::link(new_path.c_str(), path.c_str()) == 0 || errno == EEXIST;
    const int link_errno = errno;
    (void)::unlink(new_path.c_str());
    if (!is_linked) return fail(Code::io, path + ": " + errno_text(link_errno));
  }
}

// A parsed marker. Its text is "<id of the agent> <time in Unix ms>".
struct OwnerMarker {
  std::string id;
  std::uint64_t written_unix_ms = 0;
};
OwnerMarker parse_owner_marker(const std::string& text) {
  const std::size_t space = std::min(text.find(' '), text.size());
  OwnerMarker marker{text.substr(0, space)};
  for (const char c : text.substr(space)) {
    if (c >= '0' && c <= '9')
      marker.written_unix_ms = marker.written_unix_ms * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return marker;
}

}  // namespace

BucketSweep::BucketSweep(RecordStore& store, std::shared_ptr<const ArtifactBucket> bucket, const Clock& clock,
                         std::vector<Id> contexts, std::string state_dir, std::uint64_t interval_ms)
    : store_(store),
      bucket_(std::move(bucket)),
      clock_(clock),
      state_dir_(std::move(state_dir)),
      interval_ms_(interval_ms) {
  for (const Id context : contexts) rounds_[context].next_ms = clock_.boot_ms() + interval_ms_ / 2;
}

std::uint64_t BucketSweep::run_once() {
  std::uint64_t pause_ms = interval_ms_;
  for (auto& [context, round] : rounds_) {
    if (stopped()) break;
    const std::uint64_t now_ms = clock_.boot_ms();
    if (now_ms >= round.next_ms) {
      if (auto result = run_step(context, round, now_ms); !result) {
        log(LogLevel::warn, "worker", "context {}: objects without a job are not deleted: {}", context,
            result.error().message);
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
  if (!round.store_names.empty()) return list_objects(context, round);
  log_round(context, round);
  const std::uint64_t next_ms =
      std::max(round.start_ms + interval_ms_, now_ms + (now_ms - round.start_ms) * kMinSweepPauseFactor);
  round = Round{};
  round.next_ms = next_ms;
  return {};
}

// Reads the names of the store. Leaves the names empty in a context without artifacts, since artifact_store_names()
// would create a name.
Result<void> BucketSweep::begin_round(Id context, Round& round) {
  const auto fields = store_.load(context, kArtifactsKey);
  if (!fields && fields.error().code == Code::not_found) return {};
  MJ_TRY(store_names, artifact_store_names(store_, context));
  round.store_names = std::move(store_names);
  return {};
}

// Returns whether this agent may delete objects, and updates the marker. An agent that has no folder for the context
// has not stored objects, so it does not become the owner.
Result<bool> BucketSweep::check_owner(const ArtifactBucket::Area& area) {
  const std::string folder = ArtifactFolder(state_dir_, area.context).path();
  if (::access(folder.c_str(), F_OK) != 0) return false;
  MJ_TRY(own_id, read_or_create_owner_id(folder + "/object_owner"));
  auto text = bucket_->read_owner(area, &is_cancelled_);
  if (!text && text.error().code != Code::not_found) return tl::unexpected<Error>(std::move(text).error());
  const OwnerMarker marker = text ? parse_owner_marker(*text) : OwnerMarker{};
  const std::uint64_t now_ms = clock_.unix_ms();
  if (text && marker.id != own_id && now_ms < marker.written_unix_ms + kMaxOwnerSilenceMs) {
    if (std::exchange(logged_owners_[area.context], marker.id) != marker.id) {
      log(LogLevel::info, "worker",
          "context {}: another agent deletes the objects of {} (marker {}/{}/owner); if it does not exist any more, "
          "delete the marker",
          area.context, bucket_->url(), area.store_name, area.context);
    }
    return false;
  }
  MJ_CHECK(bucket_->write_owner(area, own_id + ' ' + std::to_string(now_ms), &is_cancelled_));
  // Two agents can write the first marker at the same time. The next round reads it again.
  return text.has_value() && marker.id == own_id;
}

// Lists the incomplete uploads first, and then a page of objects in each call. Listing uploads requires an additional
// access right. Without this right, the round continues with the objects.
Result<void> BucketSweep::list_objects(Id context, Round& round) {
  const ArtifactBucket::Area area{round.store_names.back(), context};
  std::vector<ArtifactBucket::ListedObject> listed;
  bool is_complete = false;
  if (!std::exchange(round.has_listed_uploads, true)) {
    MJ_TRY(is_owner, check_owner(area));
    is_complete = !is_owner;
    auto uploads = is_owner ? bucket_->list_uploads(area, &is_cancelled_) : std::vector<ArtifactBucket::ListedObject>();
    if (!uploads && uploads.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(uploads).error());
    if (uploads)
      listed = std::move(*uploads);
    else
      log(LogLevel::warn, "worker", "context {}: incomplete uploads are not aborted: {}", context,
          uploads.error().message);
  } else {
    MJ_TRY(page, bucket_->list(area, round.next_page, &is_cancelled_));
    listed = std::move(page.objects);
    round.next_page = std::move(page.next);
    is_complete = round.next_page.empty();
  }
  if (is_complete) {
    round.store_names.pop_back();
    round.has_listed_uploads = false;
  }
  std::move(listed.begin(), listed.end(), std::back_inserter(round.objects));
  return {};
}

Result<void> BucketSweep::check_objects(Id context, Round& round) {
  const std::size_t first_count = round.deleted_objects + round.failed_objects;
  const auto has_budget = [&] {
    return round.deleted_objects + round.failed_objects < first_count + kMaxDeletedObjects;
  };
  for (std::size_t jobs = 0; jobs < kMaxCheckedJobs && has_budget() && !round.objects.empty(); ++jobs) {
    const std::string job_key = round.objects.front().key.job_key;
    MJ_TRY(recorded, read_recorded_artifacts(store_, context, job_key));
    while (!round.objects.empty() && round.objects.front().key.job_key == job_key && has_budget()) {
      const ArtifactBucket::ListedObject object = std::move(round.objects.front());
      round.objects.pop_front();
      const bool is_listed = recorded && object.upload_id.empty() && recorded->hashes.contains(object.key.sha256);
      if (recorded && !is_listed) MJ_CHECK(delete_object(context, round, object));
    }
  }
  return {};
}

// Deletes an object, unless it is young or the record has changed since the object was listed. An object that the
// server does not delete must not prevent the deletion of the following ones.
Result<void> BucketSweep::delete_object(Id context, Round& round, const ArtifactBucket::ListedObject& object) {
  const std::uint64_t min_age_ms = std::min(kMinObjectAgeMs, interval_ms_);
  if (clock_.unix_ms() < object.changed_unix_ms + min_age_ms) return {};
  MJ_TRY(recorded, read_recorded_artifacts(store_, context, object.key.job_key));
  if (!recorded || (object.upload_id.empty() && recorded->hashes.contains(object.key.sha256))) return {};
  auto removed = bucket_->remove(object, &is_cancelled_);
  if (!removed && removed.error().code == Code::unavailable) return removed;
  if (removed) {
    ++round.deleted_objects;
  } else if (round.failed_objects++ == 0) {
    round.failure = std::move(removed).error().message;
  }
  return {};
}

void BucketSweep::log_round(Id context, const Round& round) const {
  if (round.deleted_objects > 0)
    log(LogLevel::info, "worker", "context {}: {} objects deleted from {}: they belong to no job", context,
        round.deleted_objects, bucket_->url());
  if (round.failed_objects > 0)
    log(LogLevel::warn, "worker", "context {}: {} objects without a job are not deleted: {}", context,
        round.failed_objects, round.failure);
}

}  // namespace mycojobs
