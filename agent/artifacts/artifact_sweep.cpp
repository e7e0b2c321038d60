#include "artifacts/artifact_sweep.h"

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

namespace mycojobs {
namespace {

constexpr std::size_t kMaxJobsBatch = 20;      // each requires a call of the store
constexpr std::size_t kMaxObjectsBatch = 200;  // checked under the lock, for which runs that keep artifacts wait
constexpr int kCountLockWaitMs = 500;          // on a busy context the lock is free only for short times
constexpr std::uint64_t kMoreMs = 50;          // between two portions of a round
constexpr std::uint64_t kRestTimes = 9;        // minimum pause after a round, as a multiple of its duration

using Stamp = std::pair<std::int64_t, std::int64_t>;

Stamp stamp_of(const struct stat& info) { return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec}; }

std::optional<Stamp> stamp_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return std::nullopt;
  return stamp_of(info);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone))
    names.push_back(entry->path().filename().string());
  return names;
}

// The artifacts that the record of a job lists.
struct Verdict {
  bool gone = false;  // the record does not exist
  std::set<std::string> wanted;
};

// Returns no value if the list can still change, so that nothing may be deleted.
Result<std::optional<Verdict>> judge(RecordStore& store, Id context, const std::string& job_key) {
  static constexpr std::array<std::string_view, 2> kFields = {"status", "artifacts"};
  auto fields = store.load_fields(context, job_key, kFields);
  if (!fields && fields.error().code == Code::not_found) return Verdict{true, {}};
  // Another client has replaced the record by another type.
  if (!fields && fields.error().code == Code::invalid) return std::nullopt;
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  const Job job = decode<Job>(*fields).record;
  const bool known = std::any_of(fields->begin(), fields->end(), [](const auto& field) {
    return field.first == "status" && (field.second == "finished" || field.second == "error");
  });
  if (!known) return std::nullopt;
  Verdict verdict;
  for (const ListedArtifact& each : read_artifact_list(job.artifacts)) verdict.wanted.insert(each.sha256);
  return verdict;
}

// The recount has not counted the deleted files, so this change does not make it outdated.
void give_back_deleted(const ArtifactUsage& usage, Id caller, std::uint64_t room, ArtifactUsage::Recount* recount) {
  const auto change = usage.release_bytes(caller, room);
  if (!change) return log(LogLevel::debug, "worker", "{}", change.error().message);  // the next round corrects it
  if (recount == nullptr) return;
  const auto own = recount->own_changes.find(caller);
  const bool is_own = own != recount->own_changes.end() && own->second == change->before;
  if (is_own || change->before <= recount->since) recount->own_changes[caller] = change->now;
}

// Returns the space of the deleted files.
std::uint64_t apply(const Verdict& verdict, const std::string& folder, const std::string& objects) {
  const std::uint64_t before = space_of_folder(folder);
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + '/' + name;
    const std::string object = objects + '/' + name;
    if (verdict.gone || !verdict.wanted.contains(name)) {
      (void)::unlink(path.c_str());  // a file that remains is found in the next round
    } else if (::access(object.c_str(), F_OK) != 0) {
      // The object was replaced (it was damaged, or had the maximum number of links), and the jobs of its successor are
      // gone.
      (void)!::link(path.c_str(), object.c_str());
    }
  }
  const std::uint64_t after = space_of_folder(folder);
  if (verdict.gone) (void)::rmdir(folder.c_str());
  return before - std::min(before, after);
}

}  // namespace

ArtifactSweep::ArtifactSweep(const Clock& clock, std::string state_dir, std::uint64_t every_ms)
    : clock_(clock), state_dir_(std::move(state_dir)), every_ms_(every_ms) {}

Result<std::uint64_t> ArtifactSweep::sweep_some(RecordStore& store, Id context) {
  constexpr std::uint64_t kNever = 3'600'000;
  if (state_dir_.empty()) return kNever;
  StepResult& turn = turns_[context];
  const std::uint64_t now = clock_.boot_ms();
  if (now < turn.next_ms) return turn.next_ms - now;
  auto went = continue_sweep(store, context, turn, now);
  if (!went) {
    turn.next_ms = now + every_ms_;
    return tl::unexpected<Error>(std::move(went).error());
  }
  return turn.next_ms > now ? turn.next_ms - now : 0;
}

Result<void> ArtifactSweep::continue_sweep(RecordStore& store, Id context, StepResult& turn, std::uint64_t now) const {
  turn.next_ms = now + kMoreMs;
  const ArtifactFolder folder(state_dir_, context);
  switch (turn.phase) {
    case Phase::spools:
      turn.began_ms = now;
      turn.next_ms = now + every_ms_;
      if (!stamp_of(folder.path())) break;  // no artifact was ever kept
      remove_dead_spools(folder.spool());
      MJ_CHECK(list_jobs(store, context, turn));
      begin_counts(folder, turn);
      turn.next_ms = now;
      turn.phase = Phase::jobs;
      break;
    case Phase::jobs:
      if (!turn.jobs.empty()) {
        MJ_CHECK(check_jobs(store, context, turn));
        break;
      }
      finish_counts(folder, turn);
      turn.objects.reset(::opendir(folder.objects().c_str()), [](DIR* open) {
        if (open != nullptr) ::closedir(open);
      });
      turn.next_ms = now;
      turn.phase = Phase::objects;
      break;
    case Phase::objects:
      check_objects(context, turn);
      if (turn.objects) break;
      turn.next_ms = std::max(turn.began_ms + every_ms_, now + (now - turn.began_ms) * kRestTimes);
      turn.phase = Phase::spools;
  }
  return {};
}

// Lists the job folders of this store. Folders of other stores are ignored.
Result<void> ArtifactSweep::list_jobs(RecordStore& store, Id context, StepResult& turn) const {
  MJ_TRY(store_names, artifact_store_names(store, context));
  // A store that was emptied has lost its names, and the records of all jobs in the folders with these names. The names
  // are saved again, so that the sweep deletes these folders.
  Fields forgotten;
  for (const std::string& known : turn.store_names) {
    if (std::find(store_names.begin(), store_names.end(), known) != store_names.end()) continue;
    forgotten.emplace_back(known, "1");
    store_names.push_back(known);
  }
  if (!forgotten.empty()) MJ_CHECK(store.save(context, kArtifactsKey, forgotten));
  turn.store_names = std::move(store_names);
  turn.jobs.clear();
  for (const std::string& store_name : turn.store_names) {
    for (std::string& name : names_in(ArtifactFolder(state_dir_, context).store_folder(store_name)))
      turn.jobs.emplace_back(store_name, std::move(name));
  }
  return {};
}

Result<void> ArtifactSweep::check_jobs(RecordStore& store, Id context, StepResult& turn) const {
  const ArtifactFolder folder(state_dir_, context);
  for (std::size_t i = 0; i < kMaxJobsBatch && !turn.jobs.empty(); ++i) {
    const auto& [store_name, name] = turn.jobs.back();
    const std::string path = folder.store_folder(store_name) + '/' + name;
    const std::string job_key = job_key_of_folder(name);
    const auto seen = stamp_of(path);
    if (!job_key.empty() && seen) {
      MJ_TRY(verdict, judge(store, context, job_key));
      const auto lock = verdict ? folder.lock(true, 0) : std::nullopt;
      // If the time stamp has changed, a run of the job has ended since (artifacts/job_artifacts.h). The next round
      // checks it again.
      const std::uint64_t gone = lock && stamp_of(path) == seen ? apply(*verdict, path, folder.objects()) : 0;
      const Id caller = caller_of_folder(name);
      const auto counted = turn.counts.find(store_name);
      ArtifactUsage::Recount* const recount = counted == turn.counts.end() ? nullptr : &counted->second;
      if (gone > 0) give_back_deleted(ArtifactUsage(folder, store_name), caller, gone, recount);
      if (const std::uint64_t room = recount == nullptr ? 0 : space_of_folder(path); room > 0)
        recount->bytes[caller] += room;
    }
    turn.jobs.pop_back();
  }
  return {};
}

// While the folder is locked, no process is between taking space and making the links. The count of a caller that no
// process changed until the end of the round, and that differs from the folders, is therefore wrong.
void ArtifactSweep::begin_counts(const ArtifactFolder& folder, StepResult& turn) const {
  turn.counts.clear();
  const auto lock = folder.lock(true, kCountLockWaitMs);
  if (!lock) return;
  for (const std::string& store_name : turn.store_names) {
    if (auto count = ArtifactUsage(folder, store_name).read()) turn.counts[store_name].since = count->changes;
  }
}

void ArtifactSweep::finish_counts(const ArtifactFolder& folder, StepResult& turn) const {
  for (const auto& [store_name, count] : turn.counts) {
    if (auto done = ArtifactUsage(folder, store_name).correct(count); !done)
      log(LogLevel::debug, "worker", "{}", done.error().message);
  }
  turn.counts.clear();
}

void ArtifactSweep::check_objects(Id context, StepResult& turn) const {
  const ArtifactFolder folder(state_dir_, context);
  const auto lock = turn.objects ? folder.lock(true, 0) : std::nullopt;
  if (turn.objects && !lock) return;  // another process is keeping artifacts
  std::size_t gone = 0;
  for (std::size_t i = 0; turn.objects && i < kMaxObjectsBatch; ++i) {
    const dirent* entry = ::readdir(turn.objects.get());
    if (entry == nullptr) {
      turn.objects.reset();
      break;
    }
    struct stat info {};
    const int objects = ::dirfd(turn.objects.get());
    if (::fstatat(objects, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode) && info.st_nlink == 1 && ::unlinkat(objects, entry->d_name, 0) == 0) ++gone;
  }
  if (gone > 0)
    log(LogLevel::debug, "worker", "context {}: {} artifacts deleted: they belong to no job", context, gone);
}

}  // namespace mycojobs
