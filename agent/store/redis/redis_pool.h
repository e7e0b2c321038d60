// The connections of a process to its Redis servers. The stores of all threads share one pool for each server, user and
// TLS identity. A call borrows a connection and gives it back, so there are as many connections as concurrent calls.
// Blocking waits for work and subscriptions use connections of their own (redis_waiter.h).
//
// Thread-safe. No lock is held while a connection sends, receives or is closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_link.h"

namespace mycojobs {

class RedisPool {
 public:
  // `identity` has the endpoint, the TLS context and the client name of all connections. Its other options are not
  // used. A connection that is idle for longer than max_idle is closed.
  RedisPool(RedisConnection::Options identity, std::shared_ptr<Metrics>,
            std::chrono::milliseconds max_idle = std::chrono::seconds(60));
  ~RedisPool();
  RedisPool(const RedisPool&) = delete;
  RedisPool& operator=(const RedisPool&) = delete;

  // Time-outs of one call.
  struct Timeouts {
    std::uint32_t connect_ms = 0, command_ms = 0;
  };
  // Returns an open connection to the database. Opens a connection if none is idle. Before that, ends the connections
  // on the server that this process has abandoned, so that none of their commands is executed after this call. Errors:
  // as documented for Link.
  Result<std::unique_ptr<RedisConnection>> borrow(std::uint32_t database, Timeouts);
  // Like borrow(), but returns null if this would send or wait.
  std::unique_ptr<RedisConnection> try_borrow(std::uint32_t database, Timeouts);
  // Takes a connection back after a call. A connection that has failed is closed, and with it all idle connections,
  // since the cause usually affects them, too.
  void give_back(std::unique_ptr<RedisConnection>);

  // Record which databases were prepared (link_opener()) since the start of the server with this run_id.
  bool is_prepared(Id context, const std::string& run_id) const;
  void mark_prepared(Id context, const std::string& run_id);

  // Returns the state of the newest connection, which has the current certificates. Set if it was made with TLS.
  std::optional<TlsState> tls_state() const;
  std::size_t open_connections() const;

 private:
  struct IdleConnection {
    std::unique_ptr<RedisConnection> connection;
    std::chrono::steady_clock::time_point since;
  };
  using Connections = std::vector<std::unique_ptr<RedisConnection>>;

  std::unique_ptr<RedisConnection> pop_idle(std::uint32_t database, bool may_select);
  std::unique_ptr<RedisConnection> pop_usable(std::uint32_t database);
  std::unique_ptr<RedisConnection> create_connection();
  Result<void> make_ready(RedisConnection&, std::uint32_t database);
  Result<void> kill_abandoned(RedisConnection&);
  void on_connected(const RedisConnection&);
  void remove_idle(std::size_t index, Connections& removed);  // requires the lock
  void update_gauge() const;                                  // requires the lock

  const RedisConnection::Options identity_;
  // Keeps the state of the group while no connection is open. Null: the endpoint has no sentinels.
  const std::shared_ptr<SentinelGroup> sentinels_;
  const std::shared_ptr<Metrics> metrics_;
  const std::chrono::milliseconds max_idle_;
  mutable std::mutex mutex_;
  std::vector<IdleConnection> idle_;  // the most recently used connection is the last
  std::size_t open_connections_ = 0;  // idle and borrowed
  std::size_t selects_ = 0;           // selections of another database since the latest new connection
  bool was_connected_ = false;
  std::string run_id_;                        // run_id of the server of the newest connection
  std::optional<TlsState> newest_tls_state_;  // state of the connection with the latest handshake
  std::vector<RedisConnection::AbandonedClient> abandoned_;
  std::map<Id, std::string> prepared_;  // run_id by context
};

// The pools of a process. Thread-safe.
class RedisPools {
 public:
  std::shared_ptr<RedisPool> find_or_create(const RedisConnection::Options&, const std::shared_ptr<Metrics>&);

 private:
  struct Entry {
    RedisEndpoint endpoint;  // without the database
    std::shared_ptr<TlsContext> tls;
    std::string client_name;
    std::shared_ptr<RedisPool> pool;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// Prepares the database of a context before its first call after a start of the server.
using PrepareContext = std::function<Result<void>(RedisConnection&)>;

// Returns a link to one database that borrows a connection for each call. `prepare` may be null.
std::unique_ptr<Link> make_pooled_link(std::shared_ptr<RedisPool>, Id context, const RedisConnection::Options&,
                                       PrepareContext prepare);

}  // namespace mycojobs
