// Lock files of Python environments in the store (executors/python/packages/package_locks.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "executors/python/packages/package_locks.h"
#include "store/store.h"

namespace mycojobs {

class StorePackageLocks final : public PackageLocks {
 public:
  // stores: must outlive the object.
  explicit StorePackageLocks(StoreFactory& stores) : stores_(stores) {}
  Result<std::string> find(Id context, const std::string& key) override;
  Result<std::string> publish(Id context, const std::string& key, const std::string& lock) override;

 private:
  // The connection of one context. A server that does not answer blocks only its own contexts.
  struct Connection {
    std::mutex mutex;
    std::unique_ptr<Store> store;
  };
  template <class Call>
  Result<std::string> call(Id context, const Call&);

  StoreFactory& stores_;
  std::mutex mutex_;
  std::map<Id, std::unique_ptr<Connection>> connections_;
};

}  // namespace mycojobs
