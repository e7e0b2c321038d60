// Waits on Redis with BLMOVE of a queue onto itself: that wakes every waiter and leaves each job where it is, so that a
// waiter that dies takes nothing with it. One connection for each context and queue, one for the topic on each server.
//
// A server that goes away: wait() returns unavailable, and again at each failed try to connect (after 250 ms, then
// each 500 ms); then `reconnected`. Other servers are waited on meanwhile.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "mycojobs/store.h"
#include "store/redis_store.h"

namespace mycojobs {

class RedisWaiter final : public Waiter {
 public:
  // Does not connect yet. Error: invalid (a URL).
  static Result<std::unique_ptr<Waiter>> open(const RedisStoreConfig&,
                                              const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic);
  Result<Woken> wait(std::uint32_t timeout_ms, bool for_work) override;
  void wake() override;
  void set_paused(Id context, const std::vector<std::string>& queues) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Line {
    Line(RedisConnection::Options options, Id c, std::string q)
        : connection(std::make_unique<RedisConnection>(std::move(options))), context(c), queue(std::move(q)) {}
    std::unique_ptr<RedisConnection> connection;
    Id context;
    std::string queue;  // empty: the topic's
    bool paused = false;
    bool asked = false;  // a command is under way
    Time answer_by;      // the server is gone if it has not answered by then
    Time ask_again;      // not before
  };
  struct Server {
    explicit Server(RedisEndpoint e) : endpoint(std::move(e)) {}
    RedisEndpoint endpoint;
    std::vector<Line> lines;
    bool up = false, was_up = false;
    unsigned failures = 0;
    Time retry_at;
  };
  RedisWaiter(std::string topic, Fd event);

  void connect_due(Woken&);
  Result<void> connect(Server&, Woken&);
  void ask(Line&, Server&, bool for_work);
  void lose(Server&, Error);
  Result<void> take_received(Line&, bool for_work, Woken&);
  bool poll_once(Time until, bool for_work, Woken&);  // true: wake() was called
  Time next_moment(Time until) const;

  std::string topic_;
  Fd event_;
  std::vector<Server> servers_;
  std::vector<Error> errors_;  // of servers lost during this wait()
};

}  // namespace mycojobs
