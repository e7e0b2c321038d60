// A cache for the results of prerequisite checks (network, files), and checks of files that do not block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"

namespace mycojobs {

inline constexpr std::uint64_t kCheckTimeoutMs = 3000;  // a check that takes longer counts as unmet

// Caches the result of each check for a few seconds. Not thread-safe.
class CheckResultCache {
 public:
  explicit CheckResultCache(const Clock& clock) : clock_(clock) {}
  std::optional<bool> find(const std::string& check_key) const {
    const auto entry = results_.find(check_key);
    if (entry == results_.end() || clock_.boot_ms() >= entry->second.until_boot_ms) return std::nullopt;
    return entry->second.is_met;
  }
  void put(const std::string& check_key, bool is_met) {
    results_[check_key] = {is_met, clock_.boot_ms() + (is_met ? kMetValidMs : kUnmetValidMs)};
  }
  void drop_expired() {
    std::erase_if(results_, [now = clock_.boot_ms()](const auto& entry) { return now >= entry.second.until_boot_ms; });
  }

 private:
  // A positive result is valid for longer than a check takes, so that the first of several conditions is still valid
  // when the check of the last completes.
  static constexpr std::uint64_t kMetValidMs = 5000, kUnmetValidMs = 1000;
  struct CachedResult {
    bool is_met = false;
    std::uint64_t until_boot_ms = 0;
  };
  const Clock& clock_;
  std::map<std::string, CachedResult> results_;
};

// Checks whether files of the host exist. Each check runs on a strand of its own (base/strands/strand_pool.h), so that
// a disk that does not respond delays only the jobs that need its files. Not thread-safe.
class FileChecks {
 public:
  explicit FileChecks(const Clock&);
  ~FileChecks() { strands_.abandon(); }
  FileChecks(const FileChecks&) = delete;
  FileChecks& operator=(const FileChecks&) = delete;
  // Returns whether the file existed at a check in the last few seconds, or no value if the check is still running or
  // has to wait for other checks. Starts a check if necessary. After kCheckTimeoutMs without a result the file counts
  // as missing.
  std::optional<bool> file_exists(const std::string& path);
  int event_fd() const { return completed_->fd(); }  // readable after a check has completed
  bool collect_results();  // returns true if a check has completed, so that file_exists() has new results

 private:
  using PathState = std::pair<std::string, bool>;  // a path, and whether the file exists
  bool has_timed_out(std::uint64_t since_boot_ms) const;

  const Clock& clock_;
  std::shared_ptr<Mailbox<PathState>> completed_;  // shared with the strands, which outlive this object if a disk hangs
  std::map<std::string, std::uint64_t> pending_since_boot_ms_;  // start of each running check, by path
  MountTable mounts_;
  StrandPool strands_;
  CheckResultCache results_;
};

}  // namespace mycojobs
