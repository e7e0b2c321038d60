#include "store/packages/package_lock_store.h"

#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {

Result<std::string> PackageLockStore::find_package_lock(Id context, const std::string& key) {
  MJ_TRY(reply, connection_.command(context, {"GET", kPackageLockKey + key}));
  return std::string(reply.text());
}

Result<std::string> PackageLockStore::add_package_lock(Id context, const std::string& key, const std::string& lock) {
  const std::string name = kPackageLockKey + key;
  MJ_CHECK(connection_.command(context, {"SET", name, lock, "NX", "PX", std::to_string(kLifetimeMs)}));
  MJ_TRY(stored, find_package_lock(context, key));
  // The lock file of another agent can have expired after SET.
  return stored.empty() ? lock : stored;
}

}  // namespace mycojobs
