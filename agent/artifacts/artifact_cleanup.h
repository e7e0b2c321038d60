// Deletes the artifacts that no job refers to, in rounds of small steps. The record of a job lists its artifacts. The
// folder of a job is compared with the record only after the job has ended, because then the record does not change any
// more. The files of jobs that wait or run are not deleted.
//
//   spools of ended agents --> job folders, compared with the records --> objects without a job --> pause
//     ^------------------------------------- next round ---------------------------------------------'
//
// Cached files of other hosts (artifacts/transfer/artifact_cache.h) and spooled logs (artifacts/logs/spooled_log.h) are
// deleted with the record of their job, too, and cached files if the cache exceeds its limits.
//
// Several agents may clean up the same folder at the same time: an agent checks each file again under the lock of the
// folder before it deletes the file.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "artifacts/artifact_usage.h"
#include "artifacts/transfer/artifact_cache.h"
#include "base/clock.h"
#include "store/record_store.h"

namespace mycojobs {

// Not thread-safe.
class ArtifactCleanup {
 public:
  // If state_dir is empty, run_step() does nothing. `interval_ms` is the minimum time between the starts of two rounds.
  // Without cache_limits, size and age of caches are not limited.
  ArtifactCleanup(const Clock& clock, std::string state_dir, std::uint64_t interval_ms,
                  std::optional<ArtifactCache::Limits> cache_limits = std::nullopt);
  // Runs the next step in the context, if it is due. Returns the time in ms until the next step is due. An earlier call
  // does nothing. Returns the errors of the store. After an error, no file was deleted whose record could not be read.
  Result<std::uint64_t> run_step(RecordStore&, Id context);
  // Returns the size of the context's cache in the latest round.
  std::uint64_t cache_bytes(Id context) const {
    const auto round = rounds_.find(context);
    return round == rounds_.end() ? 0 : round->second.cache_bytes;
  }

 private:
  enum class Phase { spools, job_folders, objects };
  struct Round {
    Phase phase = Phase::spools;
    std::uint64_t start_ms = 0, next_ms = 0;  // Clock::boot_ms() of the start and of the next step.
    enum class FolderKind { artifacts, cache, log };
    struct JobFolder {
      std::string store_name, name, path;  // path ends with the name of the folder
      FolderKind kind = FolderKind::artifacts;
    };
    std::vector<JobFolder> job_folders;    // The job folders that this round has not processed yet.
    std::uint64_t cache_bytes = 0;         // Size of the cache in the latest round.
    std::vector<std::string> store_names;  // All current and previous names of the store.
    // By name of the store: sums of the artifacts and of the logs that this round has computed.
    std::map<std::string, ArtifactUsage::Recount> recounts, log_recounts;
    std::shared_ptr<DIR> objects_dir;  // Position of this round in the folder of the objects.
  };
  Result<void> advance_round(RecordStore&, Id context, Round&, std::uint64_t now_ms) const;
  Result<void> list_job_folders(RecordStore&, Id context, Round&) const;
  Result<void> check_job_folders(RecordStore&, Id context, Round&) const;
  Result<void> check_job_folder(RecordStore&, Id context, Round&, const Round::JobFolder&) const;
  Result<void> check_log_folder(RecordStore&, Id context, Round&, const Round::JobFolder&) const;
  void check_objects(Id context, Round&) const;
  void start_recounts(const ArtifactFolder&, Round&) const;
  void apply_recounts(const ArtifactFolder&, Round&) const;

  const Clock& clock_;
  std::string state_dir_;
  std::uint64_t interval_ms_;
  std::optional<ArtifactCache::Limits> cache_limits_;
  std::map<Id, Round> rounds_;
};

}  // namespace mycojobs
