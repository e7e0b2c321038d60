#include "worker/intake/store_package_locks.h"

namespace mycojobs {

template <class Call>
Result<std::string> StorePackageLocks::call(Id context, const Call& call_store) {
  Connection* connection = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = connections_[context];
    if (!entry) entry = std::make_unique<Connection>();
    connection = entry.get();
  }
  const std::lock_guard lock(connection->mutex);
  if (!connection->store) {
    MJ_TRY(store, stores_.open());
    connection->store = std::move(store);
  }
  auto result = call_store(*connection->store);
  if (result) return result;
  // A job is not at fault if the store cannot be reached now.
  const Code code = result.error().code == Code::unavailable ? Code::unavailable : Code::unsupported;
  return fail(code, "packages: the lock file: " + result.error().message);
}

Result<std::string> StorePackageLocks::find(Id context, const std::string& key) {
  return call(context, [&](Store& store) { return store.find_package_lock(context, key); });
}

Result<std::string> StorePackageLocks::publish(Id context, const std::string& key, const std::string& lock) {
  return call(context, [&](Store& store) { return store.add_package_lock(context, key, lock); });
}

}  // namespace mycojobs
