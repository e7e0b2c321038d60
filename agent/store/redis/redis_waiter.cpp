#include "store/redis/redis_waiter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/errno_text.h"
#include "base/log.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kWakeChannel = "mj:wake";
constexpr std::string_view kBlockSeconds = "5";  // time-out of BLMOVE, after which it is sent again
constexpr milliseconds kAnswerWithin{8000};
constexpr milliseconds kPingEvery{5000};
constexpr milliseconds kAfterRefusal{2000};  // pause after an error of a queue key that is not a list
constexpr std::uint32_t kConnectTimeoutMs = 1000;
constexpr std::size_t kMaxReplyBytes =
    1U << 20;  // a longer reply was pushed by another client, since keys and hints are short

milliseconds pause_before_try(unsigned failures) { return milliseconds(failures <= 1 ? 250 : 500); }

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
                               [&](const Server& s) { return s.endpoint == options.endpoint; });
    if (server == waiter->servers_.end()) {
      server = waiter->servers_.emplace(server, options.endpoint);
      // Channels are shared by all databases, so each server needs one connection for them.
      server->lines.emplace_back(options, 0, "");
    }
    if (!queue.empty()) server->lines.emplace_back(std::move(options), context, queue);
  }
  return waiter;
}

void RedisWaiter::wake() {
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);
}

void RedisWaiter::set_paused(Id context, const std::vector<std::string>& queues) {
  for (Server& server : servers_) {
    for (WaitConnection& line : server.lines) {
      if (line.context != context || line.queue.empty()) continue;
      line.paused = std::find(queues.begin(), queues.end(), line.queue) != queues.end();
    }
  }
}

Result<WaitResult> RedisWaiter::wait(std::uint32_t timeout_ms, bool for_work) {
  const Time until = steady_clock::now() + milliseconds(timeout_ms);
  WaitResult woken;
  errors_.clear();
  const auto something = [&] { return woken.work || woken.reconnected || !woken.hints.empty(); };
  for (bool done = false; !done;) {
    connect_due(woken);
    for (Server& server : servers_) {
      for (std::size_t i = 0; server.up && i < server.lines.size(); ++i) send_wait(server.lines[i], server, for_work);
    }
    const bool ready = something() || !errors_.empty();
    const bool called = poll_once(ready ? steady_clock::now() : until, for_work, woken);
    done = ready || called || something() || !errors_.empty() || steady_clock::now() >= until;
  }
  woken.away = std::any_of(servers_.begin(), servers_.end(), [](const Server& server) { return !server.up; });
  if (something() || errors_.empty()) return woken;
  return tl::unexpected<Error>(std::move(errors_.front()));
}

void RedisWaiter::connect_due(WaitResult& woken) {
  for (Server& server : servers_) {
    if (server.up || steady_clock::now() < server.retry_at) continue;
    if (auto done = connect(server, woken); !done) {
      drop_connection(server, std::move(done).error());
      continue;
    }
    server.up = true;
    server.failures = 0;
    woken.reconnected = woken.reconnected || server.was_up;
    server.was_up = true;
  }
}

Result<void> RedisWaiter::connect(Server& server, WaitResult& woken) {
  for (WaitConnection& line : server.lines) {
    line.asked = false;
    line.ask_again = {};
    MJ_CHECK(line.connection->connect());
    if (!line.queue.empty()) continue;
    // This channel reports work that BLMOVE does not detect: jobs with a priority, and queues that are resumed.
    MJ_CHECK(line.connection->command({"SUBSCRIBE", kWakeChannel}));
    if (!topic_.empty()) MJ_CHECK(line.connection->command({"SUBSCRIBE", topic_}));
    line.ask_again = steady_clock::now() + kPingEvery;
    MJ_CHECK(take_received(line, false, woken));  // a hint may have been received with the reply
  }
  return {};
}

void RedisWaiter::send_wait(WaitConnection& line, Server& server, bool for_work) {
  const bool subscribed = line.queue.empty();
  if (line.asked || (!subscribed && (!for_work || line.paused)) || steady_clock::now() < line.ask_again) return;
  auto sent = subscribed ? line.connection->send({"PING"})
                         : line.connection->send({"BLMOVE", line.queue, line.queue, "RIGHT", "RIGHT", kBlockSeconds});
  if (!sent) return drop_connection(server, std::move(sent).error());
  line.asked = true;
  line.answer_by = steady_clock::now() + kAnswerWithin;
}

void RedisWaiter::drop_connection(Server& server, Error error) {
  for (WaitConnection& line : server.lines) line.connection->close();
  server.up = false;
  ++server.failures;
  server.retry_at = steady_clock::now() + pause_before_try(server.failures);
  errors_.push_back(std::move(error));
}

bool RedisWaiter::poll_once(Time until, bool for_work, WaitResult& woken) {
  std::vector<pollfd> fds{{event_.get(), POLLIN, 0}};
  std::vector<std::pair<Server*, WaitConnection*>> owners;
  for (Server& server : servers_) {
    if (!server.up) continue;
    for (WaitConnection& line : server.lines) {
      fds.push_back({line.connection->fd(), POLLIN, 0});
      owners.emplace_back(&server, &line);
    }
  }
  const auto left = std::chrono::ceil<milliseconds>(next_moment(until) - steady_clock::now()).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    auto [server, line] = owners[i];
    if (!server->up) continue;  // the server failed on another connection
    if (fds[i + 1].revents != 0) {
      auto done = line->connection->read_some();
      if (done) done = take_received(*line, for_work, woken);
      if (!done) drop_connection(*server, std::move(done).error());
    } else if (line->asked && steady_clock::now() >= line->answer_by) {
      drop_connection(*server,
                      {Code::unavailable, "Redis at " + server->endpoint.redacted_url() + ": no answer in time"});
    }
  }
  std::uint64_t count = 0;
  return ::read(event_.get(), &count, sizeof count) == sizeof count;
}

RedisWaiter::Time RedisWaiter::next_moment(Time until) const {
  for (const Server& server : servers_) {
    if (!server.up) until = std::min(until, server.retry_at);
    for (const WaitConnection& line : server.lines) {
      if (!server.up) break;
      if (line.asked)
        until = std::min(until, line.answer_by);
      else if (line.ask_again > steady_clock::now())
        until = std::min(until, line.ask_again);
    }
  }
  return until;
}

Result<void> RedisWaiter::take_received(WaitConnection& line, bool for_work, WaitResult& woken) {
  for (;;) {
    MJ_TRY(reply, line.connection->received());
    if (!reply) return {};
    if (line.queue.empty() && reply->at(0).text() == "message") {
      if (reply->at(1).text() == kWakeChannel) {
        woken.work = woken.work || for_work;
      } else {
        woken.hints.emplace_back(reply->at(2).text());
      }
      continue;
    }
    line.asked = false;
    if (reply->error()) {
      Error error = redis_error(reply->text());
      if (error.code != Code::invalid) return tl::unexpected<Error>(std::move(error));
      log(LogLevel::warn, "store", "cannot wait for {}: {}", line.queue, error.message);
      line.ask_again = steady_clock::now() + kAfterRefusal;
    } else if (line.queue.empty()) {  // reply to PING
      line.ask_again = steady_clock::now() + kPingEvery;
    } else if (!reply->nil() && for_work && !line.paused) {
      woken.work = true;
    }
  }
}

}  // namespace mycojobs
