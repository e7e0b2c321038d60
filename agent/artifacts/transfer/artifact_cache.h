// The cache of one context for artifacts of other hosts, in the folder <state_dir>/contexts/<context>/ :
//
//   cache/<store>/<caller>.<job>/<sha256>     a file with a verified hash, received from the runner of the job
//
// The path contains the job that stored the file, so that a client cannot use a file of another job by its hash. The
// modification time of a file is the time of its last use. The cache is limited by size and age; the least recently
// used file is deleted first. Several processes may use the folder. The functions can block on a disk. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "artifacts/artifact_folder.h"
#include "artifacts/transfer/artifact_source.h"
#include "base/result.h"

namespace mycojobs {

class ArtifactCache {
 public:
  struct Limits {
    std::uint64_t max_bytes = 4ULL << 30, max_age_ms = 7ULL * 24 * 3600 * 1000;
    std::size_t max_files = 100'000;
  };
  ArtifactCache(ArtifactFolder folder, Limits limits);

  // Moves a complete file into the cache. The folder is read only by the first call, and when the files that this
  // object and its copies have stored since then exceed a limit. Errors: io; unavailable (a concurrent cleanup has
  // deleted the folder).
  Result<void> store(const std::string& store_name, const std::string& job_key, const CompleteFile&) const;
  // Deletes files that are too old. If size or number exceed a limit, also deletes files until a tenth is free, so that
  // the next files need no further call. Returns the number of bytes that remain.
  std::uint64_t evict() const;
  // Marks a file of a cache as used now. Files in other folders are not changed.
  static void mark_used_if_cached(const std::string& path);
  // Deletes a file of a cache with another size. Files in other folders are not changed.
  static void delete_if_damaged(const std::string& path, std::uint64_t bytes);

  // Returns a target that stores a file of a job in the cache.
  std::shared_ptr<FileTarget> make_target(const std::string& store_name, const std::string& job_key) const;

 private:
  class Totals;
  ArtifactFolder folder_;
  Limits limits_;
  std::shared_ptr<Totals> totals_;
};

}  // namespace mycojobs
