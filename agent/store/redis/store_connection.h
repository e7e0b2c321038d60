// The links of one Store to Redis, and the state that its classes share. Used by the thread of the Store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/redis/redis_link.h"
#include "store/redis/store_metrics.h"

namespace mycojobs {

class JournalHeads;
struct RedisStoreConfig;

class StoreConnection : public ContextLinks {
 public:
  explicit StoreConnection(const RedisStoreConfig&);
  explicit StoreConnection(OpenLink open, StoreInstrumentation instrumentation = {})
      : ContextLinks(std::move(open), std::move(instrumentation)) {}

  // Waits until the configured number of replicas have received all previous writes. Error unavailable: time-out.
  Result<void> await_replicas(Id context);
  // Records the journal revisions of a reply: pairs of a queue and the latest revision that the call has written.
  void record_heads(Id context, const Reply& heads);
  // Cache of QueueStore::served_types() for one context.
  struct ServedTypes {
    TypeNames types;
    std::chrono::steady_clock::time_point expires_at{};
  };
  ServedTypes& served_types_cache(Id context) { return served_types_[context]; }
  // Returns at most max keys of the context's database, without duplicates. filter: further arguments of SCAN.
  Result<std::vector<std::string>> scan_keys(Id context, const Arguments& filter, std::size_t max);
  bool has_own_server(Id context) const { return contexts_with_own_server_.contains(context); }
  // Returns whether the ACL of the default server permits this database.
  Result<bool> can_access_database(std::uint32_t database) const {
    return check_database_access_ ? check_database_access_(database) : true;
  }

 private:
  std::shared_ptr<JournalHeads> journal_heads_;  // null if revisions are not recorded
  std::map<Id, ServedTypes> served_types_;
  std::uint32_t wait_replicas_ = 0;
  // Null if the URL names no user, so that no check is needed.
  std::function<Result<bool>(std::uint32_t database)> check_database_access_;
  std::set<Id> contexts_with_own_server_;
};

}  // namespace mycojobs
