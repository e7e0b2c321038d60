// Implements the registry of lock files (executors/python/packages/lock_file_registry.h) with the store.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "executors/python/packages/lock_file_registry.h"
#include "store/store.h"

namespace mycojobs {

class StoreLockFileRegistry final : public LockFileRegistry {
 public:
  // stores: must outlive the object.
  explicit StoreLockFileRegistry(StoreFactory& stores) : stores_(stores) {}
  Result<std::string> find_lock_file(Id context, const std::string& key) override;
  Result<std::string> add_lock_file(Id context, const std::string& key, const std::string& lock_file) override;
  std::string get_stored_name(const std::string& key) const override;

 private:
  // Each context has its own store and mutex, so a Redis server that does not answer blocks only its own contexts.
  struct Connection {
    std::mutex mutex;              // held during calls, since a store is used by one thread at a time
    std::unique_ptr<Store> store;  // null until the first call
  };
  // Calls a function with the store of the context, which the first call opens. Adds the subject to messages of errors
  // and maps their codes to those of the port.
  template <class Call>
  Result<std::string> call(Id context, const Call&);

  StoreFactory& stores_;
  std::mutex mutex_;  // protects the map, but not the connections
  std::map<Id, std::unique_ptr<Connection>> connections_;
};

}  // namespace mycojobs
