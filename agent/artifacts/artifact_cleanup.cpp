#include "artifacts/artifact_cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/recorded_artifacts.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxJobsPerStep = 20;      // Each job requires a call of the store.
constexpr std::size_t kMaxObjectsPerStep = 200;  // Objects are checked under the lock, which blocks ending runs.
constexpr int kCleanupLockTimeoutMs = 500;       // In a busy context the lock is free only for short times.
constexpr std::uint64_t kStepIntervalMs = 50;    // Pause between two steps of a round.
constexpr std::uint64_t kMinPauseFactor = 9;     // Minimum pause after a round, as a multiple of the round's duration.

using ModificationTime = std::pair<std::int64_t, std::int64_t>;

ModificationTime read_modification_time(const struct stat& info) { return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec}; }

std::optional<ModificationTime> read_modification_time(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return std::nullopt;
  return read_modification_time(info);
}

std::vector<std::string> list_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  return names;
}

// Releases the quota of deleted files, which `recount` does not contain. Adds the change to the changes that `recount`
// includes, so that the change does not invalidate the recount.
void release_deleted_bytes(const ArtifactUsage& usage, Id caller, std::uint64_t bytes,
                           ArtifactUsage::Recount* recount) {
  const auto change = usage.release_bytes(caller, bytes);
  if (!change) return log(LogLevel::debug, "worker", "{}", change.error().message);  // The next round corrects the sum.
  if (recount == nullptr) return;
  const auto change_number = recount->included_change_numbers.find(caller);
  const bool is_own_change =
      change_number != recount->included_change_numbers.end() && change_number->second == change->previous_number;
  if (is_own_change || change->previous_number <= recount->start_change_number)
    recount->included_change_numbers[caller] = change->current_number;
}

// Deletes the files of a job folder that the record does not list, and the folder of a job without a record.
void delete_unlisted_files(const RecordedArtifacts& recorded, const std::string& folder) {
  for (const std::string& name : list_names(folder)) {
    // The next round tries again to delete a file that remains.
    if (recorded.is_record_missing || !recorded.hashes.contains(name)) (void)::unlink((folder + '/' + name).c_str());
  }
  if (recorded.is_record_missing) (void)::rmdir(folder.c_str());
}

// Restores the objects of the listed files in a job folder. An object can be missing: it was replaced because it was
// damaged or had the maximum number of links, and then the new object was deleted with its jobs. Later runs can use the
// file as the object.
void restore_objects(const RecordedArtifacts& recorded, const std::string& folder, const std::string& objects_folder) {
  for (const std::string& name : list_names(folder)) {
    const std::string object_path = objects_folder + '/' + name;
    if (recorded.hashes.contains(name) && ::access(object_path.c_str(), F_OK) != 0)
      (void)!::link((folder + '/' + name).c_str(), object_path.c_str());
  }
}

// Deletes the unlisted files of a job folder and restores objects. Returns the accounted size of the deleted files.
std::uint64_t clean_up_job_folder(const RecordedArtifacts& recorded, const std::string& folder,
                                  const std::string& objects_folder) {
  const std::uint64_t bytes_before = measure_folder(folder);
  delete_unlisted_files(recorded, folder);
  restore_objects(recorded, folder, objects_folder);
  const std::uint64_t bytes_after = measure_folder(folder);
  return bytes_before - std::min(bytes_before, bytes_after);
}

ArtifactUsage::Recount* find_recount(std::map<std::string, ArtifactUsage::Recount>& recounts,
                                     const std::string& store_name) {
  const auto position = recounts.find(store_name);
  return position == recounts.end() ? nullptr : &position->second;
}

}  // namespace

ArtifactCleanup::ArtifactCleanup(const Clock& clock, std::string state_dir, std::uint64_t interval_ms,
                                 std::optional<ArtifactCache::Limits> cache_limits)
    : clock_(clock), state_dir_(std::move(state_dir)), interval_ms_(interval_ms), cache_limits_(cache_limits) {}

Result<std::uint64_t> ArtifactCleanup::run_step(RecordStore& store, Id context) {
  constexpr std::uint64_t kDisabledDelayMs = 3'600'000;
  if (state_dir_.empty()) return kDisabledDelayMs;
  Round& round = rounds_[context];
  const std::uint64_t now_ms = clock_.boot_ms();
  if (now_ms < round.next_ms) return round.next_ms - now_ms;
  auto step_result = advance_round(store, context, round, now_ms);
  if (!step_result) {
    round.next_ms = now_ms + interval_ms_;
    return tl::unexpected<Error>(std::move(step_result).error());
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
      if (!read_modification_time(folder.path())) break;  // The context has no artifacts.
      remove_orphaned_spools(folder.spool_folder());
      if (cache_limits_) round.cache_bytes = ArtifactCache(folder, *cache_limits_).evict();
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
      round.objects_dir.reset(::opendir(folder.objects_folder().c_str()), [](DIR* directory) {
        if (directory != nullptr) ::closedir(directory);
      });
      round.next_ms = now_ms;
      round.phase = Phase::objects;
      break;
    case Phase::objects:
      check_objects(context, round);
      if (round.objects_dir) break;
      round.next_ms = std::max(round.start_ms + interval_ms_, now_ms + (now_ms - round.start_ms) * kMinPauseFactor);
      round.phase = Phase::spools;
  }
  return {};
}

// Lists the job folders of this store and ignores the folders of other stores.
Result<void> ArtifactCleanup::list_job_folders(RecordStore& store, Id context, Round& round) const {
  MJ_TRY(store_names, artifact_store_names(store, context));
  // If the store was emptied (FLUSHALL), it has lost its names and the records of all jobs. The names are saved again,
  // so that the cleanup finds the folders of these jobs and deletes them.
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
    const ArtifactFolder folder(state_dir_, context);
    using Kind = Round::FolderKind;
    for (const auto& [kind, parent] : {std::pair(Kind::artifacts, folder.store_folder(store_name)),
                                       std::pair(Kind::cache, folder.cache_folder(store_name)),
                                       std::pair(Kind::log, folder.log_folder(store_name))}) {
      for (const std::string& name : list_names(parent))
        round.job_folders.push_back({store_name, name, parent + '/' + name, kind});
    }
  }
  return {};
}

Result<void> ArtifactCleanup::check_job_folders(RecordStore& store, Id context, Round& round) const {
  for (std::size_t i = 0; i < kMaxJobsPerStep && !round.job_folders.empty(); ++i) {
    const Round::JobFolder& job_folder = round.job_folders.back();
    switch (job_folder.kind) {
      case Round::FolderKind::artifacts:
        MJ_CHECK(check_job_folder(store, context, round, job_folder));
        break;
      case Round::FolderKind::cache: {
        MJ_TRY(recorded, read_recorded_artifacts(store, context, parse_job_folder_name(job_folder.name)));
        if (recorded) delete_unlisted_files(*recorded, job_folder.path);
        break;
      }
      case Round::FolderKind::log:
        MJ_CHECK(check_log_folder(store, context, round, job_folder));
    }
    round.job_folders.pop_back();
  }
  return {};
}

Result<void> ArtifactCleanup::check_job_folder(RecordStore& store, Id context, Round& round,
                                               const Round::JobFolder& job_folder) const {
  const ArtifactFolder folder(state_dir_, context);
  const auto& [store_name, name, path, kind] = job_folder;
  const std::string job_key = parse_job_folder_name(name);
  const auto initial_modification_time = read_modification_time(path);
  if (job_key.empty() || !initial_modification_time) return {};
  MJ_TRY(recorded, read_recorded_artifacts(store, context, job_key));
  const auto lock = recorded ? folder.lock(true, 0) : std::nullopt;
  // If the modification time has changed, a run of the job has stored files since the record was read. The next round
  // checks the folder again.
  const std::uint64_t deleted_bytes = lock && read_modification_time(path) == initial_modification_time
                                          ? clean_up_job_folder(*recorded, path, folder.objects_folder())
                                          : 0;
  const Id caller = parse_folder_caller(name);
  ArtifactUsage::Recount* const recount = find_recount(round.recounts, store_name);
  if (deleted_bytes > 0) release_deleted_bytes(ArtifactUsage(folder, store_name), caller, deleted_bytes, recount);
  if (const std::uint64_t bytes = recount == nullptr ? 0 : measure_folder(path); bytes > 0)
    recount->bytes[caller] += bytes;
  return {};
}

// Deletes the log of a job without a record.
Result<void> ArtifactCleanup::check_log_folder(RecordStore& store, Id context, Round& round,
                                               const Round::JobFolder& job_folder) const {
  const ArtifactFolder folder(state_dir_, context);
  const ArtifactUsage usage = ArtifactUsage::of_logs(folder, job_folder.store_name);
  ArtifactUsage::Recount* const recount = find_recount(round.log_recounts, job_folder.store_name);
  const std::string job_key = parse_job_folder_name(job_folder.name);
  if (job_key.empty()) return {};
  MJ_TRY(recorded, read_recorded_artifacts(store, context, job_key));
  const Id caller = parse_folder_caller(job_folder.name);
  // Without the lock, two agents that share the folder would release the same bytes.
  const auto lock = recorded && recorded->is_record_missing ? folder.lock(true, 0) : std::nullopt;
  const std::uint64_t bytes_before = measure_folder(job_folder.path);
  if (lock) delete_unlisted_files(*recorded, job_folder.path);
  const std::uint64_t bytes = lock ? measure_folder(job_folder.path) : bytes_before;
  if (bytes < bytes_before) release_deleted_bytes(usage, caller, bytes_before - bytes, recount);
  if (recount != nullptr && bytes > 0) recount->bytes[caller] += bytes;
  return {};
}

// While the folder is locked, no process has reserved quota without having created the links. If the count of a caller
// does not change until the end of the round but differs from the sum of the folders, the count is therefore wrong.
void ArtifactCleanup::start_recounts(const ArtifactFolder& folder, Round& round) const {
  round.recounts.clear();
  round.log_recounts.clear();
  const auto lock = folder.lock(true, kCleanupLockTimeoutMs);
  if (!lock) return;
  for (const std::string& store_name : round.store_names) {
    if (auto recount = ArtifactUsage(folder, store_name).read())
      round.recounts[store_name].start_change_number = recount->last_change_number;
    if (auto recount = ArtifactUsage::of_logs(folder, store_name).read())
      round.log_recounts[store_name].start_change_number = recount->last_change_number;
  }
}

void ArtifactCleanup::apply_recounts(const ArtifactFolder& folder, Round& round) const {
  const auto apply = [](const ArtifactUsage& usage, const ArtifactUsage::Recount& recount) {
    if (auto apply_result = usage.apply_recount(recount); !apply_result)
      log(LogLevel::debug, "worker", "{}", apply_result.error().message);
  };
  for (const auto& [store_name, recount] : round.recounts) apply(ArtifactUsage(folder, store_name), recount);
  for (const auto& [store_name, recount] : round.log_recounts)
    apply(ArtifactUsage::of_logs(folder, store_name), recount);
  round.recounts.clear();
  round.log_recounts.clear();
}

void ArtifactCleanup::check_objects(Id context, Round& round) const {
  const ArtifactFolder folder(state_dir_, context);
  const auto lock = round.objects_dir ? folder.lock(true, 0) : std::nullopt;
  if (round.objects_dir && !lock) return;  // Another process is storing artifacts.
  std::size_t deleted_count = 0;
  for (std::size_t i = 0; round.objects_dir && i < kMaxObjectsPerStep; ++i) {
    const dirent* entry = ::readdir(round.objects_dir.get());
    if (entry == nullptr) {
      round.objects_dir.reset();
      break;
    }
    struct stat info {};
    const int objects_fd = ::dirfd(round.objects_dir.get());
    if (::fstatat(objects_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    // An object with one link belongs to no job.
    if (S_ISREG(info.st_mode) && info.st_nlink == 1 && ::unlinkat(objects_fd, entry->d_name, 0) == 0) ++deleted_count;
  }
  if (deleted_count > 0)
    log(LogLevel::debug, "worker", "context {}: {} artifacts deleted: they belong to no job", context, deleted_count);
}

}  // namespace mycojobs
