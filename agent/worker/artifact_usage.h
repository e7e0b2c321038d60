// How much disk the artifacts of each caller take, of one store in one context's folder:
// <state_dir>/contexts/<context>/
//
//   usage-<store>        "<number of changes>", then a line "<caller> <bytes>" for each caller that has any
//   usage-<store>.lock   held while the file is read and replaced
//
// Several agents may share the folder. Room is taken before a file becomes a job's and given back after it has gone, so
// that an agent that is killed in between leaves a count that is too high; a round of ArtifactSweep corrects it. A file
// that is missing or damaged is made again from the folders of the jobs.
//
// A file counts with its size, not with the blocks that it has: a sparse file may be filled by whoever copies it. Each
// job's link counts, also where several jobs have left the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "worker/artifact_folder.h"

namespace mycojobs {

// 0: any number of bytes.
struct ArtifactQuota {
  std::uint64_t caller_bytes = 0, context_bytes = 0;
};

using BytesByCaller = std::map<Id, std::uint64_t>;

// In blocks of 4 KiB, one at least: no file takes more on the disk, and many small ones take no less.
std::uint64_t room_of_artifact(std::uint64_t bytes);
// The caller whose job has this folder ("12.2001"); 0: it is no job's.
Id caller_of_folder(const std::string& name);
// What the links in a job's folder take.
std::uint64_t room_of_folder(const std::string& path);

class ArtifactUsage {
 public:
  ArtifactUsage(ArtifactFolder folder, const std::string& store_name);

  enum class Fit { fits, caller_full, context_full };
  // Takes room for as many of the files as the quota allows, the first ones first. One answer for each. Error io: the
  // file cannot be written, or another process holds its lock for too long; nothing was taken then.
  Result<std::vector<Fit>> take(Id caller, const std::vector<std::uint64_t>& sizes, const ArtifactQuota&) const;
  Result<void> give_back(Id caller, std::uint64_t room) const;

  struct Count {
    std::uint64_t changes = 0;
    BytesByCaller bytes;
  };
  Result<Count> read() const;
  // Replaces the count by one that was made from the folders, if nothing was changed since `changes`.
  Result<void> correct(std::uint64_t changes, const BytesByCaller&) const;

 private:
  Result<Fd> lock() const;
  Result<Count> load() const;  // under the lock, as all below
  Count count_folders() const;
  Result<void> save(const Count&) const;

  ArtifactFolder folder_;
  std::string store_name_, path_;
};

}  // namespace mycojobs
