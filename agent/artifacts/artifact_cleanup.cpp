#include "artifacts/artifact_cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "model/codec.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxJobsPerStep = 20;      // each requires a call of the store
constexpr std::size_t kMaxObjectsPerStep = 200;  // checked under the lock, which blocks runs that store artifacts
constexpr int kCountLockWaitMs = 500;            // in a busy context the lock is free only for short times
constexpr std::uint64_t kStepIntervalMs = 50;    // between two steps of a round
constexpr std::uint64_t kMinPauseFactor = 9;     // minimum pause after a round, as a multiple of its duration

using ModificationTime = std::pair<std::int64_t, std::int64_t>;

ModificationTime modification_time(const struct stat& info) { return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec}; }

std::optional<ModificationTime> modification_time(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return std::nullopt;
  return modification_time(info);
}

std::vector<std::string> list_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  return names;
}

// The artifacts that the record of an ended job lists, which does not change any more. All other files in the folder of
// the job are deleted.
struct RecordedArtifacts {
  bool is_record_missing = false;
  std::set<std::string> hashes;
};

// Reads the artifacts that the record of a job lists. Returns no value if the list can still change, so that nothing
// may be deleted.
Result<std::optional<RecordedArtifacts>> read_recorded_artifacts(RecordStore& store, Id context,
                                                                 const std::string& job_key) {
  static constexpr std::array<std::string_view, 2> kFields = {"status", "artifacts"};
  auto fields = store.load_fields(context, job_key, kFields);
  if (!fields && fields.error().code == Code::not_found) return RecordedArtifacts{true, {}};
  // Another client has replaced the record by another type.
  if (!fields && fields.error().code == Code::invalid) return std::nullopt;
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  const Job job = decode<Job>(*fields).record;
  const std::string_view status = field_of(*fields, "status");
  if (status != "finished" && status != "error") return std::nullopt;
  RecordedArtifacts recorded;
  for (const ListedArtifact& artifact : read_artifact_list(job.artifacts)) recorded.hashes.insert(artifact.sha256);
  return recorded;
}

// Releases the space of deleted files. The change is added to the recount, which did not count these files.
void release_deleted(const ArtifactUsage& usage, Id caller, std::uint64_t bytes, ArtifactUsage::Recount* recount) {
  const auto change = usage.release_bytes(caller, bytes);
  if (!change) return log(LogLevel::debug, "worker", "{}", change.error().message);  // the next round corrects it
  if (recount == nullptr) return;
  const auto change_number = recount->included_change_numbers.find(caller);
  const bool is_own_change =
      change_number != recount->included_change_numbers.end() && change_number->second == change->previous_number;
  if (is_own_change || change->previous_number <= recount->start_change_number)
    recount->included_change_numbers[caller] = change->current_number;
}

// Deletes the files of a job folder that the record does not list. Returns the space of the deleted files.
std::uint64_t delete_unlisted(const RecordedArtifacts& recorded, const std::string& folder,
                              const std::string& objects) {
  const std::uint64_t bytes_before = measure_folder(folder);
  for (const std::string& name : list_names(folder)) {
    const std::string path = folder + '/' + name;
    const std::string object = objects + '/' + name;
    if (recorded.is_record_missing || !recorded.hashes.contains(name)) {
      (void)::unlink(path.c_str());  // a file that remains is found in the next round
    } else if (::access(object.c_str(), F_OK) != 0) {
      // The object was replaced (it was damaged, or had the maximum number of links), and the jobs with the
      // new object were deleted.
      (void)!::link(path.c_str(), object.c_str());
    }
  }
  const std::uint64_t bytes_after = measure_folder(folder);
  if (recorded.is_record_missing) (void)::rmdir(folder.c_str());
  return bytes_before - std::min(bytes_before, bytes_after);
}

}  // namespace

ArtifactCleanup::ArtifactCleanup(const Clock& clock, std::string state_dir, std::uint64_t interval_ms)
    : clock_(clock), state_dir_(std::move(state_dir)), interval_ms_(interval_ms) {}

Result<std::uint64_t> ArtifactCleanup::run_step(RecordStore& store, Id context) {
  constexpr std::uint64_t kDisabledDelayMs = 3'600'000;
  if (state_dir_.empty()) return kDisabledDelayMs;
  Round& round = rounds_[context];
  const std::uint64_t now_ms = clock_.boot_ms();
  if (now_ms < round.next_ms) return round.next_ms - now_ms;
  auto advanced = advance_round(store, context, round, now_ms);
  if (!advanced) {
    round.next_ms = now_ms + interval_ms_;
    return tl::unexpected<Error>(std::move(advanced).error());
  }
  return round.next_ms > now_ms ? round.next_ms - now_ms : 0;
}

Result<void> ArtifactCleanup::advance_round(RecordStore& store, Id context, Round& round, std::uint64_t now_ms) const {
  round.next_ms = now_ms + kStepIntervalMs;
  const ArtifactFolder folder(state_dir_, context);
  switch (round.phase) {
    case Phase::spools:
      round.start_ms = now_ms;
      round.next_ms = now_ms + interval_ms_;
      if (!modification_time(folder.path())) break;  // no artifact was ever stored
      remove_orphaned_spools(folder.spool_folder());
      MJ_CHECK(list_job_folders(store, context, round));
      start_recounts(folder, round);
      round.next_ms = now_ms;
      round.phase = Phase::job_folders;
      break;
    case Phase::job_folders:
      if (!round.job_folders.empty()) {
        MJ_CHECK(check_job_folders(store, context, round));
        break;
      }
      apply_recounts(folder, round);
      round.objects.reset(::opendir(folder.objects_folder().c_str()), [](DIR* open) {
        if (open != nullptr) ::closedir(open);
      });
      round.next_ms = now_ms;
      round.phase = Phase::objects;
      break;
    case Phase::objects:
      check_objects(context, round);
      if (round.objects) break;
      round.next_ms = std::max(round.start_ms + interval_ms_, now_ms + (now_ms - round.start_ms) * kMinPauseFactor);
      round.phase = Phase::spools;
  }
  return {};
}

// Lists the job folders of this store. Folders of other stores are ignored.
Result<void> ArtifactCleanup::list_job_folders(RecordStore& store, Id context, Round& round) const {
  MJ_TRY(store_names, artifact_store_names(store, context));
  // A store that was emptied has lost its names, and the records of all jobs in the folders with these names. The names
  // are saved again, so that the cleanup deletes these folders.
  Fields lost_names;
  for (const std::string& name : round.store_names) {
    if (std::find(store_names.begin(), store_names.end(), name) != store_names.end()) continue;
    lost_names.emplace_back(name, "1");
    store_names.push_back(name);
  }
  if (!lost_names.empty()) MJ_CHECK(store.save(context, kArtifactsKey, lost_names));
  round.store_names = std::move(store_names);
  round.job_folders.clear();
  for (const std::string& store_name : round.store_names) {
    for (std::string& name : list_names(ArtifactFolder(state_dir_, context).store_folder(store_name)))
      round.job_folders.emplace_back(store_name, std::move(name));
  }
  return {};
}

Result<void> ArtifactCleanup::check_job_folders(RecordStore& store, Id context, Round& round) const {
  const ArtifactFolder folder(state_dir_, context);
  for (std::size_t i = 0; i < kMaxJobsPerStep && !round.job_folders.empty(); ++i) {
    const auto& [store_name, name] = round.job_folders.back();
    const std::string path = folder.store_folder(store_name) + '/' + name;
    const std::string job_key = parse_job_folder_name(name);
    const auto time_before = modification_time(path);
    if (!job_key.empty() && time_before) {
      MJ_TRY(recorded, read_recorded_artifacts(store, context, job_key));
      const auto lock = recorded ? folder.lock(true, 0) : std::nullopt;
      // If the time stamp has changed, a run of the job has ended since (artifacts/job_artifacts.h). The next round
      // checks it again.
      const std::uint64_t deleted_bytes = lock && modification_time(path) == time_before
                                              ? delete_unlisted(*recorded, path, folder.objects_folder())
                                              : 0;
      const Id caller = parse_folder_caller(name);
      const auto position = round.recounts.find(store_name);
      ArtifactUsage::Recount* const recount = position == round.recounts.end() ? nullptr : &position->second;
      if (deleted_bytes > 0) release_deleted(ArtifactUsage(folder, store_name), caller, deleted_bytes, recount);
      if (const std::uint64_t bytes = recount == nullptr ? 0 : measure_folder(path); bytes > 0)
        recount->bytes[caller] += bytes;
    }
    round.job_folders.pop_back();
  }
  return {};
}

// While the folder is locked, no process is between reserving space and creating the links. The count of a caller that
// no process changed until the end of the round, and that differs from the folders, is therefore wrong.
void ArtifactCleanup::start_recounts(const ArtifactFolder& folder, Round& round) const {
  round.recounts.clear();
  const auto lock = folder.lock(true, kCountLockWaitMs);
  if (!lock) return;
  for (const std::string& store_name : round.store_names) {
    if (auto recount = ArtifactUsage(folder, store_name).read())
      round.recounts[store_name].start_change_number = recount->last_change_number;
  }
}

void ArtifactCleanup::apply_recounts(const ArtifactFolder& folder, Round& round) const {
  for (const auto& [store_name, recount] : round.recounts) {
    if (auto corrected = ArtifactUsage(folder, store_name).apply_recount(recount); !corrected)
      log(LogLevel::debug, "worker", "{}", corrected.error().message);
  }
  round.recounts.clear();
}

void ArtifactCleanup::check_objects(Id context, Round& round) const {
  const ArtifactFolder folder(state_dir_, context);
  const auto lock = round.objects ? folder.lock(true, 0) : std::nullopt;
  if (round.objects && !lock) return;  // another process is storing artifacts
  std::size_t deleted = 0;
  for (std::size_t i = 0; round.objects && i < kMaxObjectsPerStep; ++i) {
    const dirent* entry = ::readdir(round.objects.get());
    if (entry == nullptr) {
      round.objects.reset();
      break;
    }
    struct stat info {};
    const int objects = ::dirfd(round.objects.get());
    if (::fstatat(objects, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode) && info.st_nlink == 1 && ::unlinkat(objects, entry->d_name, 0) == 0) ++deleted;
  }
  if (deleted > 0)
    log(LogLevel::debug, "worker", "context {}: {} artifacts deleted: they belong to no job", context, deleted);
}

}  // namespace mycojobs
