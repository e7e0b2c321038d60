// Base class of the loops that work for a context (base/loop_thread.h). Between two iterations a loop waits at its
// Waiter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/loop_thread.h"
#include "store/store.h"

namespace mycojobs {

class ContextLoopBase {
 public:
  ContextLoopBase(const ContextLoopBase&) = delete;
  ContextLoopBase& operator=(const ContextLoopBase&) = delete;
  // Waits for at most `ms` milliseconds. Returns earlier when a hint for this loop arrives, a queue has an entry, the
  // connection was made again, or another thread calls wake() or stop().
  void wait_until_due(std::uint64_t ms) {
    const std::uint64_t until = clock_.boot_ms() + ms;
    for (std::uint64_t now = clock_.boot_ms(); now < until && !stop_ && !woken_.exchange(false);
         now = clock_.boot_ms()) {
      const auto result = waiter_->wait(static_cast<std::uint32_t>(until - now), waits_for_queues_);
      if (!result)
        return;  // The waiter limits the rate of reconnections, and the next iteration gets the error of the store.
      if (result->reconnected) reconnected();
      bool is_for_this_loop = result->has_work || result->reconnected;
      for (const std::string& hint : result->hints) {
        if (!hint.starts_with(hint_prefix_)) continue;
        is_for_this_loop = true;
        on_hint(std::string_view(hint).substr(hint_prefix_.size()));
      }
      if (is_for_this_loop) return;
    }
  }
  void stop() {  // any thread
    stop_ = true;
    waiter_->wake();
  }
  bool stopped() const { return stop_; }

 protected:
  // Hints that do not begin with hint_prefix are ignored. The subscription starts here, before the first read of the
  // store, so that no hint is missed in between. An error of the subscription is reported by the first call of the
  // store.
  ContextLoopBase(std::unique_ptr<Waiter> waiter, const Clock& clock, std::string hint_prefix)
      : clock_(clock), waiter_(std::move(waiter)), hint_prefix_(std::move(hint_prefix)) {
    (void)waiter_->wait(0, false);
  }
  virtual ~ContextLoopBase() = default;
  virtual void on_hint(std::string_view /*hint*/) {}  // Receives a hint without its prefix.
  virtual void reconnected() {}                       // Called after a reconnection: hints may have been missed.
  void wake() {                                       // any thread
    woken_ = true;
    waiter_->wake();
  }
  // Sets whether a new entry of a queue ends a wait.
  void set_work_queues(bool is_enabled) { waits_for_queues_ = is_enabled; }
  Waiter& waiter() { return *waiter_; }
  const std::atomic<bool>& stopping() const { return stop_; }

  const Clock& clock_;

 private:
  std::unique_ptr<Waiter> waiter_;
  std::string hint_prefix_;
  bool waits_for_queues_ = false;
  std::atomic<bool> stop_{false}, woken_{false};
};

// Returns the prefix of the hints of a context.
inline std::string hint_prefix(Id context) { return std::to_string(context) + ' '; }

}  // namespace mycojobs
