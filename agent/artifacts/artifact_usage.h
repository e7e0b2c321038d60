// Counts the disk space of the artifacts of each caller, for one store in the folder of one context,
// <state_dir>/contexts/<context>/. The counts are in these files:
//
//   usage-<store>        "<number of the last change>", then a line "<caller> <bytes> <number of the caller's last
//                        change>" for each caller that has any bytes, or had some since the last round of the cleanup
//   usage-<store>.lock   locked while the file is read and replaced
//
// Several agents may share the folder. Space is reserved before a file is linked into the folder of a job and released
// after the link was deleted. An agent that is killed in between leaves a count that is too high; ArtifactCleanup
// corrects it. Changes are numbered: the cleanup corrects the count of each caller that did not change during its
// round, even if the counts of other callers changed. A missing or damaged file is computed again from the folders of
// the jobs.
//
// The size of a file counts, not the number of its blocks, since a copy of a sparse file can occupy all blocks. Each
// link counts, even if several jobs have the same content.
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

// Returns the size rounded up to whole blocks of 4 KiB, at least one block.
std::uint64_t accounted_artifact_bytes(std::uint64_t bytes);
// Returns the caller of the job with this folder ("12.2001"), or 0 if it is not the folder of a job.
Id parse_folder_caller(const std::string& name);
// Returns the sum of accounted_artifact_bytes() over the files in the folder of a job.
std::uint64_t measure_folder(const std::string& path);

// Thread-safe, and safe for several processes.
class ArtifactUsage {
 public:
  ArtifactUsage(ArtifactFolder folder, const std::string& store_name);
  // Returns the counts of spooled logs (artifacts/logs/), which are in log-usage-<store> and have no part in the quota
  // of the artifacts.
  static ArtifactUsage of_logs(ArtifactFolder folder, const std::string& store_name);

  enum class QuotaResult { accepted, caller_full, context_full };
  // Reserves space for files of these sizes, in order, as far as the quota allows. Returns one result for each file.
  // Error io: the usage file cannot be read or written, or another process holds its lock for too long. After an error,
  // no space is reserved.
  Result<std::vector<QuotaResult>> reserve(Id caller, const std::vector<std::uint64_t>& sizes,
                                           const ArtifactQuota&) const;
  // Numbers of a change of the count of one caller, and of the previous change of the count of the same caller.
  struct UsageChange {
    std::uint64_t previous_number = 0, current_number = 0;
  };
  // Releases reserved space. Errors as for reserve().
  Result<UsageChange> release_bytes(Id caller, std::uint64_t bytes) const;

  struct CallerUsage {
    std::uint64_t bytes = 0;
    std::uint64_t last_change_number = 0;
    bool operator==(const CallerUsage&) const = default;
  };
  struct UsageRecord {
    std::uint64_t last_change_number = 0;  // Number of the last change of any caller.
    std::map<Id, CallerUsage> callers;
    std::uint64_t get_bytes(Id caller) const {
      const auto position = callers.find(caller);
      return position == callers.end() ? 0 : position->second.bytes;
    }
  };
  // Reads the stored record, or computes and stores it if it is missing or damaged. Errors as for reserve().
  Result<UsageRecord> read() const;

  // Counts that ArtifactCleanup has computed from the folders during one of its rounds.
  struct Recount {
    std::uint64_t start_change_number = 0;  // UsageRecord::last_change_number when the round began
    BytesByCaller bytes;
    std::map<Id, std::uint64_t> included_change_numbers;  // By caller: number of the last change that `bytes` includes.
  };
  // Replaces the count of each caller that has not changed since the round began, or not after the change that the
  // recount includes. Errors as for reserve().
  Result<void> apply_recount(const Recount&) const;

 private:
  Result<Fd> lock() const;
  // The functions below REQUIRE that the lock is held.
  Result<UsageRecord> load_usage() const;  // If the file is missing or damaged, computes the record and stores it.
  UsageRecord measure_folders() const;
  Result<void> save_usage(const UsageRecord&) const;

  ArtifactUsage(std::string jobs_folder, std::string path)
      : jobs_folder_(std::move(jobs_folder)), path_(std::move(path)) {}

  std::string jobs_folder_;  // contains a folder for each job
  std::string path_;         // file with the counts
};

struct ArtifactTotals {
  std::uint64_t bytes = 0;  // Sum of all callers.
  Id largest_caller = 0;    // Caller with the most bytes, or 0 if there are no artifacts.
  std::uint64_t largest_bytes = 0;
};
// Returns the sums over all stores that have a usage file in the folder of the context. The files are read without
// their locks, since a file is replaced as a whole. Missing or damaged files are skipped. Thread-safe.
ArtifactTotals read_artifact_totals(const std::string& state_dir, Id context);

}  // namespace mycojobs
