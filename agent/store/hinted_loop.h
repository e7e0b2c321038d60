// Base class of the loops that work for a context on the threads of a pool (base/loop_pool.h). Hints of the store make
// the loop due: messages on its channels and changes of its keys.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop_pool.h"
#include "store/store.h"

namespace mycojobs {

class HintedLoop : public PooledLoop, private HintListener {
 public:
  std::uint64_t run_once() final {
    process_hints();
    return run_iteration();
  }

 protected:
  // Hints on channels that do not begin with hint_prefix are ignored.
  explicit HintedLoop(std::string hint_prefix) : hint_prefix_(std::move(hint_prefix)) {}
  // Does the due work, and returns the time in ms until the loop is due again.
  virtual std::uint64_t run_iteration() = 0;
  // Receives a hint without its prefix, before an iteration; an empty hint after a change of a key. If many hints are
  // pending, some are omitted.
  virtual void on_hint(std::string_view /*hint*/) {}
  // Returns the time within which the loop runs after a change of a key. Any thread.
  virtual std::chrono::milliseconds key_hint_delay(std::string_view /*key*/) const { return {}; }
  virtual void reconnected() {}  // Called before an iteration if hints may have been missed.

  // Subscribes to the hints, then makes the loop due, so that no hint is missed in between. Error `unavailable`: a
  // thread cannot be created.
  Result<void> begin(StoreFactory& stores, Id context, const HintTopics& topics, LoopPool& pool) {
    MJ_TRY(subscription, stores.subscribe(context, topics, *this));
    subscription_ = std::move(subscription);
    return begin_loop(pool);
  }
  // The destructor of the final class calls it (PooledLoop::end_loop()).
  void end() {
    end_loop();
    subscription_.reset();
  }
  // Returns the maximum pause of an idle loop. Without a complete subscription the loop polls.
  std::uint64_t max_idle_ms() const {
    return subscription_ && subscription_->is_complete() ? kMaxIdleMs : kMaxPollIntervalMs;
  }

 private:
  static constexpr std::uint64_t kMaxIdleMs = 15'000, kMaxPollIntervalMs = 1000;
  static constexpr std::size_t kMaxPendingHints = 256;

  void on_message(std::string_view /*channel*/, std::string_view text) final {
    if (!text.starts_with(hint_prefix_)) return;
    {
      const std::lock_guard lock(mutex_);
      if (hints_.size() < kMaxPendingHints) hints_.emplace_back(text.substr(hint_prefix_.size()));
    }
    wake();
  }
  void on_key_changed(std::string_view key) final {
    {
      const std::lock_guard lock(mutex_);
      is_key_changed_ = true;
    }
    wake(key_hint_delay(key));
  }
  void on_subscription_changed(bool is_complete) final {
    {
      const std::lock_guard lock(mutex_);
      is_reconnected_ = is_reconnected_ || is_complete;
    }
    wake();
  }
  void process_hints() {
    std::vector<std::string> hints;
    bool is_reconnected = false;
    {
      const std::lock_guard lock(mutex_);
      hints.swap(hints_);
      if (std::exchange(is_key_changed_, false)) hints.emplace_back();
      is_reconnected = std::exchange(is_reconnected_, false);
    }
    if (is_reconnected) reconnected();
    for (const std::string& hint : hints) on_hint(hint);
  }

  const std::string hint_prefix_;
  std::unique_ptr<HintSubscription> subscription_;
  std::mutex mutex_;
  std::vector<std::string> hints_;  // hints since the latest iteration, without their prefix
  bool is_reconnected_ = false, is_key_changed_ = false;
};

// Returns the prefix of the hints of a context.
inline std::string hint_prefix(Id context) { return std::to_string(context) + ' '; }

}  // namespace mycojobs
