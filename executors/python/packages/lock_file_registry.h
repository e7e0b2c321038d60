// Port: the lock files that all agents of a context share. Agents that install from the same lock file install the same
// versions with the same hashes on all hosts. The agent implements the port with the store
// (worker/intake/store_lock_file_registry.h).
#pragma once

#include <string>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// Thread-safe. The functions block. Errors: unavailable (the store cannot be reached; retry later), unsupported (the
// store rejected the call; the message has the reason).
class LockFileRegistry {
 public:
  virtual ~LockFileRegistry() = default;
  // Returns the lock file for the requirements with this key, or an empty text if none is stored. key: a hash of the
  // requirements, the index and the ABI of Python and of the C library.
  virtual Result<std::string> find_lock_file(Id context, const std::string& key) = 0;
  // Stores the lock file unless one is stored for the key. Returns the lock file that is stored afterwards, which may
  // be the lock file of another agent.
  virtual Result<std::string> add_lock_file(Id context, const std::string& key, const std::string& lock_file) = 0;
  // Returns the name of the lock file in the store, which the operator can delete: "mj:package-lock:<key>".
  virtual std::string get_stored_name(const std::string& key) const = 0;
};

}  // namespace mycojobs
