#include "artifacts/transfer/log_fetcher.h"

#include <chrono>
#include <condition_variable>
#include <utility>

#include "artifacts/transfer/log_request.h"
#include "base/random.h"
#include "store/transfer_store.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kLogChannelIdleMs = 60000;
constexpr milliseconds kSubscribeTimeout{3000};
constexpr milliseconds kAnswerTimeout{2000};      // for one request
constexpr int kMaxRequests = 2;                   // a request is repeated, since messages can be lost
constexpr std::uint64_t kSilentRunnerMs = 10000;  // time without requests to a runner that did not answer

}  // namespace

// The subscription and the connection for the logs of one context. Thread-safe.
class LogFetcher::Channel final : public HintListener {
 public:
  static Result<std::shared_ptr<Channel>> open(StoreFactory& stores, const Clock& clock, Id context) {
    MJ_TRY(store, stores.open_reader());
    auto channel = std::make_shared<Channel>(clock, context, std::move(store));
    // Publishes an empty message on a channel without subscribers. This detects a Redis user without permission for the
    // channels. The requests of this user would otherwise wait for the time-out of the subscription.
    const auto sent = channel->publish(transfer_channel(channel->database_, std::string(kTransferIdDigits, '0')), "");
    if (!sent && sent.error().code == Code::denied)
      return fail(Code::denied, "this Redis user may not request lines of other hosts (`context acl`)");
    MJ_TRY(subscription, stores.subscribe_transfers(context, {channel->reply_channel_}, *channel));
    channel->subscription_ = std::move(subscription);
    return channel;
  }
  Channel(const Clock& clock, Id context, std::unique_ptr<Store> store)
      : clock_(clock),
        context_(context),
        store_(std::move(store)),
        database_(store_->database_number(context)),
        reply_channel_(transfer_channel(database_, random_hex(kTransferIdDigits / 2))) {}
  ~Channel() { subscription_.reset(); }  // first, since its thread calls the functions of HintListener
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Result<SpooledLines> read(Id runner, const std::string& job_key, const LogRange& range) {
    const std::string runner_name = "runner " + std::to_string(runner);
    if (is_silent(runner)) return fail(Code::unavailable, runner_name + ", which has these lines, is away");
    if (!wait_until_subscribed())
      return fail(Code::unavailable, "this process cannot subscribe to the channel mj:transfer (`context acl`)");
    PieceRequest request{random_hex(kTransferIdDigits / 2), reply_channel_, job_key, {}};
    request.log_range = range;
    const PendingReply pending(*this, request.transfer_id);
    for (int i = 0; i < kMaxRequests; ++i) {
      MJ_TRY(receivers, publish(transfer_channel(database_, runner), encode_log_request(request)));
      if (receivers == 0) {
        mark_silent(runner);
        return fail(Code::unavailable, runner_name + ", which has these lines, is away");
      }
      if (const auto reply = wait_for_reply(request.transfer_id)) return decode_spooled_lines(*reply, range);
    }
    mark_silent(runner);
    return fail(Code::unavailable, runner_name + ", which has these lines, does not answer");
  }
  void mark_used(std::uint64_t now_ms) { last_use_ms_ = now_ms; }  // guarded by LogFetcher::mutex_
  bool is_idle(std::uint64_t now_ms) const { return now_ms > last_use_ms_ + kLogChannelIdleMs; }

 private:
  // Adds an entry for a request to replies_. The destructor removes the entry.
  class PendingReply {
   public:
    PendingReply(Channel& channel, const std::string& id) : channel_(channel), id_(id) {
      const std::lock_guard lock(channel_.mutex_);
      channel_.replies_[id_];
    }
    ~PendingReply() {
      const std::lock_guard lock(channel_.mutex_);
      channel_.replies_.erase(id_);
    }
    PendingReply(const PendingReply&) = delete;
    PendingReply& operator=(const PendingReply&) = delete;

   private:
    Channel& channel_;
    const std::string& id_;
  };
  bool is_silent(Id runner) {
    const std::lock_guard lock(mutex_);
    const auto silent = silent_until_ms_.find(runner);
    return silent != silent_until_ms_.end() && clock_.boot_ms() < silent->second;
  }
  void mark_silent(Id runner) {
    const std::uint64_t now_ms = clock_.boot_ms();
    const std::lock_guard lock(mutex_);
    std::erase_if(silent_until_ms_, [&](const auto& entry) { return entry.second <= now_ms; });
    silent_until_ms_[runner] = now_ms + kSilentRunnerMs;
  }
  bool wait_until_subscribed() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kSubscribeTimeout, [this] { return subscription_->is_complete(); });
  }
  Result<std::uint64_t> publish(const std::string& channel, const std::string& message) {
    const std::lock_guard lock(store_mutex_);
    return store_->publish_transfer(context_, channel, message);
  }
  std::optional<std::string> wait_for_reply(const std::string& transfer_id) {
    std::unique_lock lock(mutex_);
    std::optional<std::string>& reply = replies_.at(transfer_id);
    changed_.wait_for(lock, kAnswerTimeout, [&] { return reply.has_value(); });
    return std::move(reply);
  }
  void on_message(std::string_view /*channel*/, std::string_view text) override {
    const auto reply = parse_log_reply(text);
    if (!reply) return;
    const std::lock_guard lock(mutex_);
    const auto entry = replies_.find(std::string(reply->transfer_id));
    if (entry == replies_.end()) return;
    entry->second = std::string(reply->lines);
    changed_.notify_all();
  }
  void on_key_changed(std::string_view) override {}
  void on_subscription_changed(bool) override {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  const Clock& clock_;
  const Id context_;
  std::mutex store_mutex_;
  const std::unique_ptr<Store> store_;  // guarded by store_mutex_
  const std::uint32_t database_;
  const std::string reply_channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::optional<std::string>> replies_;  // by transfer id; guarded by mutex_
  std::map<Id, std::uint64_t> silent_until_ms_;                // runners that did not answer; guarded by mutex_
  std::uint64_t last_use_ms_ = 0;
  std::unique_ptr<HintSubscription> subscription_;
};

LogFetcher::LogFetcher(StoreFactory& stores, const Clock& clock) : stores_(stores), clock_(clock) {}
LogFetcher::~LogFetcher() = default;

// Opens the channel while mutex_ is not held; otherwise a Redis server that does not answer would delay the readers of
// other contexts.
Result<std::shared_ptr<LogFetcher::Channel>> LogFetcher::get_or_open_channel(Id context) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = channels_.find(context); found != channels_.end()) return found->second;
  }
  MJ_TRY(channel, Channel::open(stores_, clock_, context));
  const std::lock_guard lock(mutex_);
  return channels_.emplace(context, channel)
      .first->second;  // returns the channel of another thread if that was added first
}

Result<SpooledLines> LogFetcher::read(Id context, Id runner, const std::string& job_key, const LogRange& range) {
  MJ_TRY(channel, get_or_open_channel(context));
  std::vector<std::shared_ptr<Channel>> idle_channels;  // destroyed while mutex_ is not held
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now_ms = clock_.boot_ms();
    channel->mark_used(now_ms);
    for (auto entry = channels_.begin(); entry != channels_.end();) {
      const bool is_idle = entry->second.use_count() == 1 && entry->second->is_idle(now_ms);
      if (is_idle) idle_channels.push_back(std::move(entry->second));
      entry = is_idle ? channels_.erase(entry) : std::next(entry);
    }
  }
  return channel->read(runner, job_key, range);
}

}  // namespace mycojobs
