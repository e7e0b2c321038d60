// Results of checks outside of the store, kept while they are valid.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "mycojobs/clock.h"

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

}  // namespace mycojobs
