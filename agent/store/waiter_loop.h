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
      const auto woken = waiter_->wait(static_cast<std::uint32_t>(until - now), takes_work_);
      if (!woken) return;  // The waiter paces its reconnections, and the next iteration meets the error of the store.
      if (woken->reconnected) reconnected();
      bool has_own_work = woken->work || woken->reconnected;
      for (const std::string& hint : woken->hints) {
        if (!hint.starts_with(mine_)) continue;
        has_own_work = true;
        on_hint(std::string_view(hint).substr(mine_.size()));
      }
      if (has_own_work) return;
    }
  }
  void stop() {  // any thread
    stop_ = true;
    waiter_->wake();
  }
  bool stopped() const { return stop_; }

 protected:
  // mine: prefix of the hints for this loop; empty accepts every hint. The subscription starts here, before the first
  // read of the store, so that no hint is missed in between. The first iteration meets an error of the subscription.
  ContextLoopBase(std::unique_ptr<Waiter> waiter, const Clock& clock, std::string mine)
      : clock_(clock), waiter_(std::move(waiter)), mine_(std::move(mine)) {
    (void)waiter_->wait(0, false);
  }
  virtual ~ContextLoopBase() = default;
  virtual void on_hint(std::string_view /*hint*/) {}  // Receives a hint without the prefix `mine`.
  virtual void reconnected() {}                       // Called after a reconnection: hints may have been missed.
  void wake() {                                       // any thread
    woken_ = true;
    waiter_->wake();
  }
  void set_work_queues(bool wanted) { takes_work_ = wanted; }  // Sets whether a new entry of a queue ends a wait.
  Waiter& waiter() { return *waiter_; }
  const std::atomic<bool>& stopping() const { return stop_; }

  const Clock& clock_;

 private:
  std::unique_ptr<Waiter> waiter_;
  std::string mine_;
  bool takes_work_ = false;
  std::atomic<bool> stop_{false}, woken_{false};
};

// Returns the prefix of the hints of a context.
inline std::string hints_of(Id context) { return std::to_string(context) + ' '; }

}  // namespace mycojobs
