#include "worker/intake/store_lock_file_registry.h"

#include "store/keys.h"

namespace mycojobs {
namespace {

// Maps an error of the store to the errors of the port. A job returns to its queue after `unavailable` and is retried
// after `unsupported`. All other codes would end the job without a retry, although the store is the cause.
tl::unexpected<Error> make_registry_error(const Error& error) {
  const Code code = error.code == Code::unavailable ? Code::unavailable : Code::unsupported;
  return fail({code, error.message}, "packages: the lock file");
}

}  // namespace

template <class Call>
Result<std::string> StoreLockFileRegistry::call(Id context, const Call& call_store) {
  Connection* connection = nullptr;
  {
    const std::lock_guard guard(mutex_);
    auto& entry = connections_[context];
    if (!entry) entry = std::make_unique<Connection>();
    connection = entry.get();
  }
  const std::lock_guard guard(connection->mutex);
  if (!connection->store) {
    auto store = stores_.open();
    if (!store) return make_registry_error(store.error());
    connection->store = std::move(*store);
  }
  auto result = call_store(*connection->store);
  if (result) return result;
  return make_registry_error(result.error());
}

Result<std::string> StoreLockFileRegistry::find_lock_file(Id context, const std::string& key) {
  return call(context, [&](Store& store) { return store.find_lock_file(context, key); });
}

Result<std::string> StoreLockFileRegistry::add_lock_file(Id context, const std::string& key,
                                                         const std::string& lock_file) {
  return call(context, [&](Store& store) { return store.add_lock_file(context, key, lock_file); });
}

std::string StoreLockFileRegistry::get_stored_name(const std::string& key) const { return kPackageLockKey + key; }

}  // namespace mycojobs
