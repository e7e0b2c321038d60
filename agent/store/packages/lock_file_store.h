// Stores the lock files of Python environments, so that all agents of a context install the same versions of packages.
// Errors and thread-safety are described in store/store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

class LockFileStore {
 public:
  // A lock file expires after this time. The next installation then resolves the requirements again and can select
  // newer versions.
  static constexpr std::uint64_t kLifetimeMs = 30ULL * 24 * 3600 * 1000;

  // Maximum size of a lock file. Other clients can write to the store, so a larger value is not read completely.
  static constexpr std::size_t kMaxBytes = 256U << 10;

  explicit LockFileStore(StoreConnection& connection) : connection_(connection) {}

  // Returns the lock file with this key, or an empty text if none is stored. Returns the first kMaxBytes + 1 bytes of a
  // larger value, which check_lock_file() rejects. key: a hash of the requirements, the index and the Python ABI.
  Result<std::string> find_lock_file(Id context, const std::string& key);
  // Stores the lock file unless one is stored for the key. Returns the lock file that is stored afterwards.
  Result<std::string> add_lock_file(Id context, const std::string& key, const std::string& lock_file);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
