#include "store/packages/lock_file_store.h"

#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {

Result<std::string> LockFileStore::find_lock_file(Id context, const std::string& key) {
  MJ_TRY(reply, connection_.command(context, {"GETRANGE", kPackageLockKey + key, "0", std::to_string(kMaxBytes)}));
  return std::string(reply.text());
}

Result<std::string> LockFileStore::add_lock_file(Id context, const std::string& key, const std::string& lock_file) {
  const std::string redis_key = kPackageLockKey + key;
  MJ_CHECK(connection_.command(context, {"SET", redis_key, lock_file, "NX", "PX", std::to_string(kLifetimeMs)}));
  MJ_TRY(stored, find_lock_file(context, key));
  // SET stores nothing if another agent has stored a lock file, and that file can expire before the read.
  return stored.empty() ? lock_file : stored;
}

}  // namespace mycojobs
