// Port: lock files of environments, shared by the agents of a context, so that all hosts install the same files. The
// agent implements it with the store.
#pragma once

#include <string>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// Thread-safe. The functions block. Errors: unavailable, unsupported (the lock files cannot be used; another attempt
// may succeed).
class PackageLocks {
 public:
  virtual ~PackageLocks() = default;
  // Returns the lock file of the requirements with this key, or an empty text.
  virtual Result<std::string> find(Id context, const std::string& key) = 0;
  // Stores a lock file unless another agent has stored one. Returns the stored lock file.
  virtual Result<std::string> publish(Id context, const std::string& key, const std::string& lock) = 0;
};

}  // namespace mycojobs
