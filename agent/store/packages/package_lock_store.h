// Lock files of Python environments, which all agents of a context install from. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

class PackageLockStore {
 public:
  // A lock file is deleted after this time, so that the requirements are resolved again.
  static constexpr std::uint64_t kLifetimeMs = 30ULL * 24 * 3600 * 1000;

  explicit PackageLockStore(StoreConnection& connection) : connection_(connection) {}

  // Returns the lock file with this key, or an empty text. key: a hash of the requirements.
  Result<std::string> find_package_lock(Id context, const std::string& key);
  // Stores a lock file unless there is one. Returns the stored one.
  Result<std::string> add_package_lock(Id context, const std::string& key, const std::string& lock);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
