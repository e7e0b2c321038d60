// Configuration of the stores on Redis servers, and their factory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "store/redis/redis_connection.h"
#include "store/redis/redis_link.h"
#include "store/redis/redis_pool.h"
#include "store/store.h"

namespace mycojobs {

// The latest journal revisions that the stores of one process have seen. They reveal a server that was restarted
// without its latest data. Thread-safe.
class JournalHeads {
 public:
  void observe_head(Id context, const std::string& queue, std::uint64_t head);
  // Compares the revisions with those that the journals of a context had when its server was started. Returns a text
  // for users that names the journals with lost facts, or an empty text. A loss is reported once for each start.
  std::string find_lost_queues(Id context, const std::string& server_run_id, const Fields& heads_at_start);

 private:
  struct ObservedHeads {
    std::string server_run_id;
    std::map<std::string, std::uint64_t> heads;  // by queue
  };
  std::mutex mutex_;
  std::map<Id, ObservedHeads> observed_by_context_;
};

struct RedisStoreConfig {
  std::string default_url = "redis://127.0.0.1:6379";
  // URLs of contexts that have their own server, or their own database of the default server. Such a URL may name a
  // database (/0, ?db=0); otherwise the id of a context is its database number.
  std::map<Id, std::string> context_urls;
  // Certificates for servers with TLS (rediss://): of the default server and of contexts without certificates of their
  // own, and of single contexts with their own server. Null: the CAs of the system are trusted.
  std::shared_ptr<TlsContext> tls;
  std::map<Id, std::shared_ptr<TlsContext>> context_tls;
  SentinelSettings sentinel;             // for addresses with sentinels
  std::string client_name = "mycojobs";  // as shown by CLIENT LIST; must not contain blanks
  std::uint32_t connect_timeout_ms = 3000, command_timeout_ms = 5000;
  std::uint32_t reader_timeout_ms = 3000;  // limit of both time-outs for StoreFactory::open_reader()
  std::shared_ptr<JournalHeads> journal_heads =
      std::make_shared<JournalHeads>();                                // shared by all stores of this configuration
  std::shared_ptr<RedisPools> pools = std::make_shared<RedisPools>();  // shared like journal_heads
  StoreInstrumentation instrumentation;
  // True for the server of a state folder, which commands start and stop: a restart is then normal and is logged at the
  // level `info`.
  bool is_intermittent = false;
  // Number of replicas that must have received a submission or an end before the call succeeds.
  std::uint32_t wait_replicas = 0;
};

// Returns the server and database of a context. Context 0 stands for database 0 of the default server. Error: invalid
// (a URL).
Result<RedisConnection::Options> connection_options(const RedisStoreConfig&, Id context);

// Returns links that borrow their connections from the pools of the configuration. The first call of a context after a
// start of its server prepares the database.
OpenLink link_opener(const RedisStoreConfig&);

// Returns a thread-safe factory. It does not connect.
std::unique_ptr<StoreFactory> make_redis_stores(RedisStoreConfig);

}  // namespace mycojobs
