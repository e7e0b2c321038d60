// The Waiter on Redis. It waits with BLMOVE of a queue onto itself, which wakes every waiter and leaves each job in its
// place, so that no job is lost with a waiter. There is one connection for each context and queue, and one for the
// channels of each server.
//
// When a server becomes unavailable, wait() returns the error unavailable, and again after each failed attempt to
// connect (after 250 ms, then every 500 ms). After a successful attempt, wait() returns with `reconnected`. Meanwhile
// it continues to wait for the other servers. Thread-safety: wake() may be called from any thread, all other functions
// from one thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "store/redis/redis_stores.h"
#include "store/store.h"

namespace mycojobs {

class RedisWaiter final : public Waiter {
 public:
  // Does not connect yet. Error: invalid (a URL).
  static Result<std::unique_ptr<Waiter>> open(const RedisStoreConfig&,
                                              const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic);
  Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) override;
  void wake() override;
  void set_paused(Id context, const std::vector<std::string>& queues) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct WaitConnection {
    WaitConnection(RedisConnection::Options options, Id context_id, std::string queue_key)
        : connection(std::make_unique<RedisConnection>(std::move(options))),
          context(context_id),
          queue(std::move(queue_key)) {}
    std::unique_ptr<RedisConnection> connection;
    Id context;
    std::string queue;  // empty for the connection of the channels
    bool paused = false;
    bool reply_pending = false;  // a command was sent, and its reply has not been received
    Time reply_deadline;         // deadline of the reply, after which the server counts as unavailable
    Time next_command_at;        // earliest time of the next command
  };
  struct Server {
    Server(RedisEndpoint address, std::shared_ptr<TlsContext> tls_context)
        : endpoint(std::move(address)), tls(std::move(tls_context)) {}
    RedisEndpoint endpoint;
    std::shared_ptr<TlsContext> tls;
    std::vector<WaitConnection> connections;
    bool is_connected = false, was_connected = false;
    unsigned failures = 0;
    Time retry_at;
  };
  RedisWaiter(std::string topic, Fd event);

  void connect_due(WaitResult&);
  Result<void> connect(Server&, WaitResult&);
  void send_wait(WaitConnection&, Server&, bool for_work);
  void drop_connection(Server&, Error);
  Result<void> process_replies(WaitConnection&, bool for_work, WaitResult&);
  bool poll_once(Time until, bool for_work, WaitResult&);  // returns true if wake() was called
  Time next_wakeup(Time until) const;

  std::string topic_;
  Fd event_;
  std::vector<Server> servers_;
  std::vector<Error> errors_;  // errors of the servers that failed during this wait()
};

}  // namespace mycojobs
