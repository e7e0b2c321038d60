#include "store/redis/redis_waiter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/errno_text.h"
#include "base/log.h"
#include "store/keys.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kBlockSeconds = "5";  // time-out of BLMOVE, after which it is sent again
constexpr milliseconds kReplyTimeout{8000};
constexpr milliseconds kPingInterval{5000};
constexpr milliseconds kQueueErrorDelay{2000};  // pause after an error of a queue key that is not a list
constexpr std::uint32_t kConnectTimeoutMs = 1000;
// Keys and hints are short. A longer reply was pushed by another client, and closes the connection.
constexpr std::size_t kMaxReplyBytes = 1U << 20;

milliseconds reconnect_delay(unsigned failures) { return milliseconds(failures <= 1 ? 250 : 500); }

}  // namespace

RedisWaiter::RedisWaiter(std::string topic, Fd event) : topic_(std::move(topic)), event_(std::move(event)) {}

Result<std::unique_ptr<Waiter>> RedisWaiter::open(const RedisStoreConfig& config,
                                                  const std::vector<std::pair<Id, std::string>>& queues,
                                                  const std::string& topic) {
  Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail(Code::io, "cannot make an eventfd: " + errno_text(errno));
  std::unique_ptr<RedisWaiter> waiter(new RedisWaiter(topic, std::move(event)));
  for (const auto& [context, queue] : queues) {
    MJ_TRY(options, connection_options(config, context));
    options.connect_timeout_ms = std::min(options.connect_timeout_ms, kConnectTimeoutMs);
    options.max_reply_bytes = kMaxReplyBytes;
    auto server = std::find_if(waiter->servers_.begin(), waiter->servers_.end(),
                               [&](const Server& s) { return s.endpoint == options.endpoint && s.tls == options.tls; });
    if (server == waiter->servers_.end()) {
      server = waiter->servers_.emplace(server, options.endpoint, options.tls);
      // Channels are shared by all databases, so each server needs one connection for them.
      server->connections.emplace_back(options, 0, "");
    }
    if (!queue.empty()) server->connections.emplace_back(std::move(options), context, queue);
  }
  return waiter;
}

void RedisWaiter::wake() {
  const std::uint64_t increment = 1;
  (void)!::write(event_.get(), &increment, sizeof increment);
}

void RedisWaiter::set_paused(Id context, const std::vector<std::string>& queues) {
  for (Server& server : servers_) {
    for (WaitConnection& connection : server.connections) {
      if (connection.context != context || connection.queue.empty()) continue;
      connection.paused = std::find(queues.begin(), queues.end(), connection.queue) != queues.end();
    }
  }
}

Result<WaitResult> RedisWaiter::wait(std::uint32_t timeout_ms, bool for_work) {
  const Time until = steady_clock::now() + milliseconds(timeout_ms);
  WaitResult result;
  errors_.clear();
  const auto has_result = [&] { return result.has_work || result.reconnected || !result.hints.empty(); };
  for (bool is_done = false; !is_done;) {
    connect_due(result);
    for (Server& server : servers_) {
      for (std::size_t i = 0; server.is_connected && i < server.connections.size(); ++i)
        send_wait(server.connections[i], server, for_work);
    }
    const bool is_ready = has_result() || !errors_.empty();
    const bool was_woken = poll_once(is_ready ? steady_clock::now() : until, for_work, result);
    is_done = is_ready || was_woken || has_result() || !errors_.empty() || steady_clock::now() >= until;
  }
  result.has_unreachable_server =
      std::any_of(servers_.begin(), servers_.end(), [](const Server& server) { return !server.is_connected; });
  if (has_result() || errors_.empty()) return result;
  return tl::unexpected<Error>(std::move(errors_.front()));
}

void RedisWaiter::connect_due(WaitResult& result) {
  for (Server& server : servers_) {
    if (server.is_connected || steady_clock::now() < server.retry_at) continue;
    if (auto connected = connect(server, result); !connected) {
      drop_connection(server, std::move(connected).error());
      continue;
    }
    server.is_connected = true;
    server.failures = 0;
    result.reconnected = result.reconnected || server.was_connected;
    server.was_connected = true;
  }
}

Result<void> RedisWaiter::connect(Server& server, WaitResult& result) {
  for (WaitConnection& connection : server.connections) {
    connection.reply_pending = false;
    connection.next_command_at = {};
    MJ_CHECK(connection.connection->connect());
    if (!connection.queue.empty()) continue;
    // This channel reports work that BLMOVE does not detect: jobs with a priority, and queues that are resumed.
    // One command for both channels: between two, a hint could arrive, which looks like a closed connection.
    Arguments subscribe{"SUBSCRIBE", kWakeChannel};
    if (!topic_.empty()) subscribe.add(topic_);
    MJ_CHECK(connection.connection->command(subscribe));
    connection.next_command_at = steady_clock::now() + kPingInterval;
    MJ_CHECK(process_replies(connection, false, result));  // a hint may have been received with the reply
  }
  return {};
}

void RedisWaiter::send_wait(WaitConnection& connection, Server& server, bool for_work) {
  const bool is_channel_connection = connection.queue.empty();
  if (connection.reply_pending || (!is_channel_connection && (!for_work || connection.paused)) ||
      steady_clock::now() < connection.next_command_at)
    return;
  auto sent = is_channel_connection ? connection.connection->send({"PING"})
                                    : connection.connection->send({"BLMOVE", connection.queue, connection.queue,
                                                                   "RIGHT", "RIGHT", kBlockSeconds});
  if (!sent) return drop_connection(server, std::move(sent).error());
  connection.reply_pending = true;
  connection.reply_deadline = steady_clock::now() + kReplyTimeout;
}

void RedisWaiter::drop_connection(Server& server, Error error) {
  for (WaitConnection& connection : server.connections) connection.connection->close();
  server.is_connected = false;
  ++server.failures;
  server.retry_at = steady_clock::now() + reconnect_delay(server.failures);
  errors_.push_back(std::move(error));
}

bool RedisWaiter::poll_once(Time until, bool for_work, WaitResult& result) {
  std::vector<pollfd> fds{{event_.get(), POLLIN, 0}};
  std::vector<std::pair<Server*, WaitConnection*>> owners;
  bool has_buffered_input = false;
  for (Server& server : servers_) {
    if (!server.is_connected) continue;
    for (WaitConnection& connection : server.connections) {
      fds.push_back({connection.connection->fd(), POLLIN, 0});
      owners.emplace_back(&server, &connection);
      has_buffered_input = has_buffered_input || connection.connection->has_buffered_input();
    }
  }
  const auto timeout_ms =
      has_buffered_input ? 0 : std::chrono::ceil<milliseconds>(next_wakeup(until) - steady_clock::now()).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(timeout_ms, 0, 1 << 30)));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    auto [server, connection] = owners[i];
    if (!server->is_connected) continue;  // the server failed on another connection
    if (fds[i + 1].revents != 0 || connection->connection->has_buffered_input()) {
      auto read_result = connection->connection->read_some();
      if (read_result) read_result = process_replies(*connection, for_work, result);
      if (!read_result) drop_connection(*server, std::move(read_result).error());
    } else if (connection->reply_pending && steady_clock::now() >= connection->reply_deadline) {
      drop_connection(*server,
                      {Code::unavailable, "Redis at " + server->endpoint.redacted_url() + ": no answer in time"});
    }
  }
  std::uint64_t count = 0;
  return ::read(event_.get(), &count, sizeof count) == sizeof count;
}

RedisWaiter::Time RedisWaiter::next_wakeup(Time until) const {
  for (const Server& server : servers_) {
    if (!server.is_connected) until = std::min(until, server.retry_at);
    for (const WaitConnection& connection : server.connections) {
      if (!server.is_connected) break;
      if (connection.reply_pending)
        until = std::min(until, connection.reply_deadline);
      else if (connection.next_command_at > steady_clock::now())
        until = std::min(until, connection.next_command_at);
    }
  }
  return until;
}

Result<void> RedisWaiter::process_replies(WaitConnection& connection, bool for_work, WaitResult& result) {
  for (;;) {
    MJ_TRY(reply, connection.connection->next_reply());
    if (!reply) return {};
    if (connection.queue.empty() && reply->at(0).text() == "message") {
      if (reply->at(1).text() == kWakeChannel) {
        result.has_work = result.has_work || for_work;
      } else {
        result.hints.emplace_back(reply->at(2).text());
      }
      continue;
    }
    connection.reply_pending = false;
    if (reply->is_error()) {
      Error error = redis_error(reply->text());
      if (error.code != Code::invalid) return tl::unexpected<Error>(std::move(error));
      log(LogLevel::warn, "store", "cannot wait for {}: {}", connection.queue, error.message);
      connection.next_command_at = steady_clock::now() + kQueueErrorDelay;
    } else if (connection.queue.empty()) {  // reply to PING
      connection.next_command_at = steady_clock::now() + kPingInterval;
    } else if (!reply->is_nil() && for_work && !connection.paused) {
      result.has_work = true;
    }
  }
}

}  // namespace mycojobs
