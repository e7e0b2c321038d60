#include "store/redis/hint_subscriptions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/loop_thread.h"
#include "base/mailbox.h"
#include "base/thread.h"
#include "store/redis/key_tracking.h"

namespace mycojobs {
namespace {

using HintClock = std::chrono::steady_clock;
using HintTime = HintClock::time_point;
using std::chrono::milliseconds;

constexpr milliseconds kHintPingInterval{5000};
constexpr milliseconds kHintReplyTimeout{8000};
constexpr std::uint32_t kHintConnectTimeoutMs = 1000;
// Keys and hints are short. A longer reply was pushed by another client, and closes the connection.
constexpr std::size_t kMaxHintBytes = 1U << 20;

milliseconds hint_reconnect_delay(unsigned failures) { return milliseconds(failures <= 1 ? 250 : 500); }

}  // namespace

class HintSubscriptions::Server {
 public:
  struct Entry {
    HintTopics topics;
    HintListener* listener = nullptr;
  };
  using Position = std::list<Entry>::iterator;

  explicit Server(const RedisConnection::Options& options)
      : endpoint_(options.endpoint), tls_(options.tls), connection_(options) {}
  ~Server() {
    is_stopping_ = true;
    wakeup_.wake();
    if (thread_.joinable()) thread_.join();
  }
  Result<void> start() {
    MJ_TRY(thread, start_thread([this] { run(); }, "hints"));
    thread_ = std::move(thread);
    return {};
  }
  bool serves(const RedisConnection::Options& options) const {
    return endpoint_ == options.endpoint && tls_ == options.tls;
  }
  Position add(const HintTopics& topics, HintListener& listener) {
    const std::lock_guard lock(mutex_);
    const std::size_t known = channels_.size() + keys_.size();
    channels_.insert(topics.channels.begin(), topics.channels.end());
    keys_.insert(topics.keys.begin(), topics.keys.end());
    if (channels_.size() + keys_.size() > known) {
      has_new_topics_ = true;
      is_live_ = false;
      wakeup_.wake();
    }
    return entries_.insert(entries_.end(), {topics, &listener});
  }
  void remove(Position entry) {
    const std::lock_guard lock(mutex_);
    entries_.erase(entry);
  }
  bool is_complete(const HintTopics& topics) const { return is_live_ && (topics.keys.empty() || tracks_keys_); }

 private:
  void run() {
    while (!is_stopping_) {
      if (const HintTime now = HintClock::now(); !connection_.connected() && now >= retry_at_) {
        if (auto connected = connect(); !connected) drop_connection(connected.error());
      }
      wait_for_input();
      if (!connection_.connected()) continue;
      auto received = connection_.read_some();
      if (received) received = process_replies();
      if (received) received = check_liveness();
      if (!received) drop_connection(received.error());
    }
  }

  // Sends the subscriptions. Their replies are processed by process_replies().
  Result<void> connect() {
    std::vector<std::string> channels;
    std::set<std::string> keys;
    {
      const std::lock_guard lock(mutex_);
      channels.assign(channels_.begin(), channels_.end());
      keys = keys_;
      has_new_topics_ = false;
    }
    MJ_CHECK(connection_.connect());
    MJ_TRY(tracks_keys, request_reports(keys));
    tracks_keys_ = tracks_keys;
    Arguments subscribe{"SUBSCRIBE"};
    if (tracks_keys) subscribe.add(kInvalidateChannel);
    for (const std::string& channel : channels) subscribe.add(channel);
    // RESP2 permits no other commands afterwards, so CLIENT TRACKING comes first.
    pending_subscriptions_ = channels.size() + (tracks_keys ? 1 : 0);
    reply_deadline_ = HintClock::now() + kHintReplyTimeout;
    is_ping_pending_ = false;
    if (pending_subscriptions_ > 0) return connection_.send(subscribe);
    complete_connection();
    return {};
  }

  // Returns false if the server or the rights of the user do not permit it.
  Result<bool> request_reports(const std::set<std::string>& keys) {
    if (keys.empty()) return false;
    MJ_TRY(refusal, track_keys(connection_, keys));
    if (refusal && !std::exchange(is_tracking_error_logged_, true))
      log(LogLevel::warn, "store", "CLIENT TRACKING: {} (lists of plain clients are polled every second)",
          refusal->message);
    return !refusal;
  }

  void wait_for_input() {
    pollfd fds[] = {{wakeup_.fd(), POLLIN, 0}, {connection_.connected() ? connection_.fd() : -1, POLLIN, 0}};
    const HintTime until = !connection_.connected()                         ? retry_at_
                           : pending_subscriptions_ > 0 || is_ping_pending_ ? reply_deadline_
                                                                            : next_ping_;
    const auto ms = connection_.connected() && connection_.has_buffered_input()
                        ? 0
                        : std::chrono::ceil<milliseconds>(until - HintClock::now()).count();
    ::poll(fds, 2, static_cast<int>(std::clamp<std::int64_t>(ms, 0, 10000)));
    (void)wakeup_.consume_all();
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_new_topics_, false)) connection_.close();  // The next connection has all topics.
  }

  Result<void> check_liveness() {
    const HintTime now = HintClock::now();
    if (pending_subscriptions_ > 0 || is_ping_pending_) {
      if (now >= reply_deadline_) return fail(Code::unavailable, "no answer in time");
      return {};
    }
    if (now < next_ping_) return {};
    is_ping_pending_ = true;
    reply_deadline_ = now + kHintReplyTimeout;
    return connection_.send({"PING"});
  }

  Result<void> process_replies() {
    for (;;) {
      MJ_TRY(reply, connection_.next_reply());
      if (!reply) return {};
      if (reply->is_error()) return tl::unexpected<Error>(redis_error(reply->text()));
      const std::string_view kind = reply->at(0).text();
      if (kind == "message") {
        deliver(*reply);
      } else if (kind == "subscribe") {
        if (pending_subscriptions_ > 0 && --pending_subscriptions_ == 0) complete_connection();
      } else {  // the reply to PING
        is_ping_pending_ = false;
        next_ping_ = HintClock::now() + kHintPingInterval;
      }
    }
  }

  void deliver(const Reply& message) {
    const std::string_view channel = message.at(1).text();
    const std::lock_guard lock(mutex_);
    if (tracks_keys_ && channel == kInvalidateChannel) {
      const Reply keys = message.at(2);
      for (const Entry& entry : entries_) {
        for (const std::string& key : entry.topics.keys) {
          bool is_changed = keys.is_nil();  // FLUSHALL and FLUSHDB
          for (std::size_t i = 0; i < keys.size() && !is_changed; ++i) is_changed = keys.at(i).text() == key;
          if (is_changed) entry.listener->on_key_changed(key);
        }
      }
      return;
    }
    const std::string text(message.at(2).text());
    for (const Entry& entry : entries_) {
      const auto& channels = entry.topics.channels;
      if (std::find(channels.begin(), channels.end(), channel) != channels.end())
        entry.listener->on_message(channel, text);
    }
  }

  void complete_connection() {
    failures_ = 0;
    is_error_logged_ = false;
    next_ping_ = HintClock::now() + kHintPingInterval;
    const std::lock_guard lock(mutex_);
    if (has_new_topics_) return;
    is_live_ = is_reported_live_ = true;
    for (const Entry& entry : entries_) entry.listener->on_subscription_changed(is_complete(entry.topics));
  }

  void drop_connection(const Error& error) {
    connection_.close();
    ++failures_;
    retry_at_ = HintClock::now() + hint_reconnect_delay(failures_);
    if (error.code != Code::unavailable && !std::exchange(is_error_logged_, true))
      log(LogLevel::warn, "store", "hints of the server are not received: {} (polling)", error.message);
    const std::lock_guard lock(mutex_);
    is_live_ = false;
    if (!std::exchange(is_reported_live_, false)) return;
    for (const Entry& entry : entries_) entry.listener->on_subscription_changed(false);
  }

  const RedisEndpoint endpoint_;
  const std::shared_ptr<TlsContext> tls_;
  // Used by the thread only.
  RedisConnection connection_;
  std::size_t pending_subscriptions_ = 0;  // replies to SUBSCRIBE that were not received yet
  bool is_ping_pending_ = false, is_tracking_error_logged_ = false, is_error_logged_ = false;
  unsigned failures_ = 0;
  HintTime retry_at_{}, reply_deadline_{}, next_ping_{};

  std::mutex mutex_;
  std::list<Entry> entries_;
  std::set<std::string> channels_, keys_;  // topics of all entries since the start
  bool is_reported_live_ = false;          // the state that was reported to the listeners
  bool has_new_topics_ = false;            // topics were added after the connection was made
  std::atomic<bool> is_live_{false}, tracks_keys_{false}, is_stopping_{false};
  Mailbox<int> wakeup_;
  std::thread thread_;
};

class HintSubscriptions::Subscription final : public HintSubscription {
 public:
  Subscription(std::shared_ptr<Server> server, HintTopics topics, HintListener& listener)
      : server_(std::move(server)), topics_(std::move(topics)), position_(server_->add(topics_, listener)) {}
  ~Subscription() override { server_->remove(position_); }
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;
  bool is_complete() const override { return server_->is_complete(topics_); }

 private:
  std::shared_ptr<Server> server_;
  HintTopics topics_;
  Server::Position position_;
};

Result<std::unique_ptr<HintSubscription>> HintSubscriptions::subscribe(RedisConnection::Options options,
                                                                       const HintTopics& topics,
                                                                       HintListener& listener) {
  options.database = 0;  // Channels belong to no database.
  options.connect_timeout_ms = std::min(options.connect_timeout_ms, kHintConnectTimeoutMs);
  options.max_reply_bytes = kMaxHintBytes;
  const std::lock_guard lock(mutex_);
  std::erase_if(servers_, [](const std::weak_ptr<Server>& server) { return server.expired(); });
  for (const std::weak_ptr<Server>& candidate : servers_) {
    if (auto server = candidate.lock(); server && server->serves(options))
      return std::make_unique<Subscription>(std::move(server), topics, listener);
  }
  auto server = std::make_shared<Server>(options);
  MJ_CHECK(server->start());
  servers_.push_back(server);
  return std::make_unique<Subscription>(std::move(server), topics, listener);
}

}  // namespace mycojobs
