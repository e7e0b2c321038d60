// Caches the names of the store (artifact_store_names()) of each context for a minute. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "artifacts/job_artifacts.h"
#include "base/clock.h"
#include "store/record_store.h"

namespace mycojobs {

class StoreNameCache {
 public:
  // REQUIRES: the store and the clock outlive the cache.
  StoreNameCache(RecordStore& store, const Clock& clock) : store_(store), clock_(clock) {}

  // Returns the names, or null if the store does not answer. The pointer is valid until the next call.
  const std::vector<std::string>* find(Id context) {
    Entry& entry = entries_[context];
    if (entry.names.empty() || clock_.boot_ms() > entry.read_boot_ms + kMaxAgeMs) {
      auto names = artifact_store_names(store_, context);
      if (!names) return nullptr;
      entry = {std::move(*names), clock_.boot_ms()};
    }
    return &entry.names;
  }
  // Removes the names of a context, so that find() reads them again.
  void remove(Id context) { entries_.erase(context); }
  // Removes the names that are at least min_age_ms old. Returns whether they were removed.
  bool remove_if_older(Id context, std::uint64_t min_age_ms) {
    if (clock_.boot_ms() < entries_[context].read_boot_ms + min_age_ms) return false;
    remove(context);
    return true;
  }

 private:
  static constexpr std::uint64_t kMaxAgeMs = 60000;
  struct Entry {
    std::vector<std::string> names;
    std::uint64_t read_boot_ms = 0;
  };

  RecordStore& store_;
  const Clock& clock_;
  std::map<Id, Entry> entries_;
};

}  // namespace mycojobs
