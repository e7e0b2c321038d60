// Disk space of the artifacts of each caller, for one store in the folder of one context:
// <state_dir>/contexts/<context>/
//
//   usage-<store>        "<number of the last change>", then a line "<caller> <bytes> <number of its last change>"
//                        for each caller that has any bytes, or had some since the last round of the cleanup
//   usage-<store>.lock   held while the file is read and replaced
//
// Several agents may share the folder. Space is reserved before a file is linked into the folder of a job and released
// after the link was deleted. An agent that is killed in between leaves a count that is too high; ArtifactCleanup
// corrects it. Changes are numbered: the cleanup corrects the count of each caller that did not change during its
// round, even if the counts of other callers changed. A missing or damaged count is computed again from the folders of
// the jobs.
//
// A file counts with its size, not with its blocks, since copying a sparse file fills it. Each link counts, also when
// several jobs have the same content.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "artifacts/artifact_folder.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// Limits in bytes. 0 means unlimited.
struct ArtifactQuota {
  std::uint64_t caller_bytes = 0, context_bytes = 0;
};

using BytesByCaller = std::map<Id, std::uint64_t>;

// Returns the size in whole blocks of 4 KiB, at least one block, as files take on the disk.
std::uint64_t accounted_artifact_bytes(std::uint64_t bytes);
// Returns the caller of the job with this folder ("12.2001"), or 0 if it is not the folder of a job.
Id parse_folder_caller(const std::string& name);
// Returns the space of the links in the folder of a job.
std::uint64_t measure_folder(const std::string& path);

// Thread-safe, and safe for several processes.
class ArtifactUsage {
 public:
  ArtifactUsage(ArtifactFolder folder, const std::string& store_name);

  enum class QuotaResult { accepted, caller_full, context_full };
  // Reserves space for the files, in order, as far as the quota allows. Returns one result for each file. Error io: the
  // count cannot be written, or another process holds its lock for too long; no space was reserved then.
  Result<std::vector<QuotaResult>> reserve(Id caller, const std::vector<std::uint64_t>& sizes,
                                           const ArtifactQuota&) const;
  // The numbers of a change of a caller's count and of the previous change of the same count.
  struct CountChange {
    std::uint64_t previous = 0, current = 0;
  };
  // Releases reserved space. Errors as for reserve().
  Result<CountChange> release_bytes(Id caller, std::uint64_t bytes) const;

  struct CallerCount {
    std::uint64_t bytes = 0;
    std::uint64_t last_change = 0;  // number of the last change
    bool operator==(const CallerCount&) const = default;
  };
  struct Count {
    std::uint64_t last_change = 0;  // number of the last change of any caller
    std::map<Id, CallerCount> callers;
    std::uint64_t get_bytes(Id caller) const {
      const auto position = callers.find(caller);
      return position == callers.end() ? 0 : position->second.bytes;
    }
  };
  // Reads the stored count, or computes and stores it if it is missing or damaged. Errors as for reserve().
  Result<Count> read() const;

  // A count that was computed from the folders, to replace the stored one.
  struct Recount {
    std::uint64_t start_change = 0;  // Count::last_change when the computation began
    BytesByCaller bytes;
    std::map<Id, std::uint64_t> included_changes;  // changes that the computation has included
  };
  // Replaces the counts of the callers that did not change since, except for their included_changes.
  Result<void> apply_recount(const Recount&) const;

 private:
  Result<Fd> lock() const;
  // The functions below REQUIRE that the lock is held. load_count() stores a computed count at once.
  Result<Count> load_count() const;
  Count measure_folders() const;
  Result<void> save_count(const Count&) const;

  ArtifactFolder folder_;
  std::string store_name_, path_;
};

struct ArtifactTotals {
  std::uint64_t bytes = 0;  // sum of all callers
  Id largest_caller = 0;    // caller with the most bytes; 0: no caller has any
  std::uint64_t largest_bytes = 0;
};
// Returns the sums over all stores that have a count in the folder of the context. The counts are read without their
// locks, since a count is replaced as a whole. Missing or damaged counts are skipped. Thread-safe.
ArtifactTotals read_artifact_totals(const std::string& state_dir, Id context);

}  // namespace mycojobs
