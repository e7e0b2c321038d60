// Results of checks outside of the store, kept while they are valid.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"

namespace mycojobs {

constexpr std::uint64_t kCheckMs = 3000;  // time limit of a check; after it, the result is negative

class CheckResultCache {
 public:
  explicit CheckResultCache(const Clock& clock) : clock_(clock) {}
  std::optional<bool> find(const std::string& what) const {
    const auto found = seen_.find(what);
    if (found == seen_.end() || clock_.boot_ms() >= found->second.until_boot_ms) return std::nullopt;
    return found->second.yes;
  }
  void put(const std::string& what, bool yes) { seen_[what] = {yes, clock_.boot_ms() + (yes ? kYesMs : kNoMs)}; }
  void drop_old() {
    std::erase_if(seen_, [now = clock_.boot_ms()](const auto& each) { return now >= each.second.until_boot_ms; });
  }

 private:
  // A positive result is valid for longer than a check takes, so that the first of several conditions is still valid
  // when the check of the last completes.
  static constexpr std::uint64_t kYesMs = 5000, kNoMs = 1000;
  struct CheckResult {
    bool yes = false;
    std::uint64_t until_boot_ms = 0;
  };
  const Clock& clock_;
  std::map<std::string, CheckResult> seen_;
};

// Checks whether files of the host exist. Each file is checked by a thread of its own, since its disk may hang; only
// callers that need that file wait for it. Not thread-safe.
class FileChecks {
 public:
  explicit FileChecks(const Clock&);
  // Returns a result of the last few seconds. No value: the check is under way, or will start with a later call. After
  // three seconds without a result the file counts as missing.
  std::optional<bool> ask(const std::string& path);
  int event_fd() const;  // readable after a check has completed
  bool take_results();   // true: a check has completed, call ask() again

 private:
  struct Answers;  // results of the threads, which outlive this object if a disk hangs
  bool hangs(std::uint64_t since_boot_ms) const;

  const Clock& clock_;
  std::shared_ptr<Answers> answers_;
  std::map<std::string, std::uint64_t> under_way_;  // with start times
  CheckResultCache seen_;
};

}  // namespace mycojobs
