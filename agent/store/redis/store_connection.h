// The links of one Store to Redis, and the state that its classes share. Used by the thread of the Store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // The server and database that the configuration gives to a context.
  struct ContextAddress {
    std::string server;  // for messages, without user and password
    std::uint32_t database = 0;
    bool is_on_default_server = true;
  };
  ContextAddress address(Id context) const;
  // Returns the context whose data this database of the default server has, or 0 if no context of this configuration
  // uses it. stored_id: the id in the database; 0: none.
  Id find_context(std::uint32_t database, Id stored_id) const;
  // Returns the databases of this list that the Redis user may select, with the ids that are stored in them.
  Result<std::vector<std::pair<std::uint32_t, Id>>> read_stored_ids(Id context, std::vector<std::uint32_t> databases);

 private:
  std::shared_ptr<JournalHeads> journal_heads_;  // null if revisions are not recorded
  std::map<Id, ServedTypes> served_types_;
  std::uint32_t wait_replicas_ = 0;
  std::string default_server_;
  std::map<Id, ContextAddress> own_addresses_;
  // By the context of the connection. Denied databases are remembered, because the server adds an entry to its ACL log
  // at each refusal.
  std::map<Id, std::set<std::uint32_t>> denied_databases_;
};

}  // namespace mycojobs
