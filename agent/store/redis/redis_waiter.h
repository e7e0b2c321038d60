// The Waiter on Redis. A blocking command serves one queue of one database, and clients may add a job with LPUSH alone,
// so each server has at most kMaxBlockingConnections connections that block, on the queues in which entries were seen
// last. They wait with BLMOVE of a queue onto itself, which wakes every waiter and leaves each job in its place, so
// that no job is lost with a waiter. With more queues than that, the others are polled together by one connection: when
// the server reports a change of a queue of that name in any database, and otherwise with a pause that grows while no
// entry is found. The scripts of this project also publish the context and name of an empty queue to which they add a
// job, so that no poll is needed.
//
// Each agent that serves a queue sees each of its entries, and one of them claims it. A waiter that often reports
// entries too late stops blocking, and polls all queues after a random delay (store/redis/reaction_delay.h), so that
// the cost of a job does not grow with the number of agents.
//
// When a server becomes unavailable, wait() returns the error unavailable, and again after each failed attempt to
// connect (after 250 ms, then every 500 ms). After a successful attempt, wait() returns with `reconnected`. Meanwhile
// it continues to wait for the other servers. Thread-safety: wake() may be called from any thread, all other functions
// from one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "store/redis/reaction_delay.h"
#include "store/redis/redis_stores.h"
#include "store/store.h"

namespace mycojobs {

// A message of a channel that names one queue: "<context> <queue>". Other messages apply to all queues.
struct QueueHint {
  Id context = 0;
  std::string_view queue;
};
std::optional<QueueHint> parse_queue_hint(std::string_view message);

class RedisWaiter final : public Waiter {
 public:
  static constexpr std::size_t kMaxBlockingConnections = 24;  // for each server

  // Does not connect yet. Error: invalid (a URL).
  static Result<std::unique_ptr<Waiter>> open(const RedisStoreConfig&,
                                              const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic);
  Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) override;
  void wake() override;
  void set_paused(Id context, const std::vector<std::string>& queues) override;
  void on_claimed(Id context, bool has_found_entries) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct WatchedQueue {
    Id context = 0;
    std::uint32_t database = 0;
    std::string key;
    bool paused = false;
    bool is_blocked_on = false;  // a blocking connection waits for it
    bool has_entries = false;    // an entry was seen, and may still be there: the next poll is due at once
    bool is_unreported = false;  // an entry was seen, and no result of wait() has named the context since
    bool is_announced = false;   // is_unreported because of a message on kWakeChannel
    bool is_claim_due = false;   // a result of wait() has named the context, and no claim has followed yet
    // This agent has claimed an entry of the context, and replies from the time before may not have been read yet.
    bool has_old_replies = false;
    bool is_doubtful = false;  // the last entry was seen while has_old_replies was set
    Time last_work;            // when an entry was seen last
    Time next_check_at;        // earliest time of the next check after an error of the key or its database
  };
  // A sent command of a poll, before its reply.
  struct PollStep {
    enum class Kind { select, exists, length } kind;
    std::vector<std::size_t> queues;  // index in Server::queues. select: the queues of the following commands
  };
  struct WaitConnection {
    explicit WaitConnection(RedisConnection::Options options)
        : connection(std::make_unique<RedisConnection>(std::move(options))) {}
    std::unique_ptr<RedisConnection> connection;
    std::size_t pending_replies = 0;
    Time reply_deadline;   // deadline of the replies, after which the server counts as unavailable
    Time next_command_at;  // earliest time of the next PING (connection of the channels)
    // Blocking connections only.
    std::size_t queue = 0;                  // index in Server::queues
    std::optional<std::uint32_t> database;  // selected database; nullopt after a failed SELECT
  };
  struct Server {
    explicit Server(RedisConnection::Options connection_options)
        : options(std::move(connection_options)), channels(options) {}
    RedisConnection::Options options;  // options of the first queue
    WaitConnection channels;
    std::vector<WaitConnection> blocking;
    std::optional<WaitConnection> poller;  // set if there are more queues than blocking connections
    std::vector<WatchedQueue> queues;
    std::deque<PollStep> poll_steps;           // replies that the poller expects
    std::vector<std::size_t> poll_candidates;  // queues of contexts in which the present poll has found a key
    bool is_full_poll = false, has_found_entries = false, is_select_rejected = false;  // state of the present poll
    Time next_poll_at;
    bool has_reports = false;        // the server reports changes of polled queues
    bool is_poll_requested = false;  // a queue was changed after the latest poll was sent
    bool is_poll_deferred = false;   // defer_requested_poll() was called after the latest poll was sent
    Time earliest_requested_poll, requested_poll_at;
    bool is_requested_poll = false;       // the present poll was requested
    bool has_claimed = false;             // this agent has claimed jobs between the previous poll and the present poll
    bool has_claimed_since_poll = false;  // this agent has claimed jobs since the latest poll was sent
    std::chrono::milliseconds poll_pause{};
    bool is_connected = false, was_connected = false;
    unsigned failures = 0;
    Time retry_at;
  };
  RedisWaiter(std::string topic, Fd event);

  Server& find_or_add_server(const RedisConnection::Options&);
  void connect_due(WaitResult&);
  Result<void> connect(Server&, WaitResult&);
  Result<void> subscribe(Server&);
  static Result<bool> request_reports(Server&);
  void request_poll(Server&);
  bool can_block(const Server&) const;
  void send_requests(Server&, bool for_work);
  static Result<void> send_ping(Server&);
  Result<void> send_blocking_wait(Server&, WaitConnection&);
  static Result<void> send_poll(Server&);
  static Result<void> send_poll_steps(Server&, std::deque<PollStep>);
  void drop_connection(Server&, Error);
  // Processes the replies of one connection. Each returns an error that ends all connections of the server.
  Result<void> process_input(Server&, WaitConnection&, WaitResult&);
  Result<void> process_channel_reply(Server&, const Reply&, WaitResult&);
  Result<void> process_blocking_reply(Server&, WaitConnection&, const Reply&);
  static void defer_requested_poll(Server&);
  Result<void> process_poll_reply(Server&, const Reply&);
  Result<void> complete_poll(Server&);
  static Result<void> handle_queue_error(WatchedQueue&, const Reply&, bool is_select);
  void process_queue_hint(Server&, const Reply& message);
  static void delay_check(WatchedQueue&);
  static void clear_old_replies(Server&);
  void add_work(WatchedQueue&);
  void report_work(WaitResult&);
  bool poll_once(Time until, bool for_work, WaitResult&);  // returns true if wake() was called
  Time next_wakeup(Time until, bool for_work) const;

  std::string topic_;
  Fd event_;
  std::deque<Server> servers_;
  std::vector<Error> errors_;  // errors of the servers that failed during this wait()
  // What was seen since the last wait() for work. has_unnamed_work_: a message applies to all queues.
  bool has_unreported_work_ = false, has_unnamed_work_ = false;
  // claim_delay_ counts claims that found no entry. poll_delay_ also counts requested polls that found none, which may
  // be due to queues of the same names in contexts of other agents.
  ReactionDelay claim_delay_, poll_delay_;
};

}  // namespace mycojobs
