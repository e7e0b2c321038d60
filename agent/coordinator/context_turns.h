// The base of what takes turns for a context (base/turns.h) and rests at its Waiter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/turns.h"
#include "mycojobs/clock.h"
#include "mycojobs/store.h"

namespace mycojobs {

class ContextTurns {
 public:
  ContextTurns(const ContextTurns&) = delete;
  ContextTurns& operator=(const ContextTurns&) = delete;
  // Until a hint for it has come, a queue has an entry, the connection is a new one, somebody has called wake() or
  // stop(), or so long.
  void rest(std::uint64_t ms) {
    const std::uint64_t until = clock_.boot_ms() + ms;
    for (std::uint64_t now = clock_.boot_ms(); now < until && !stop_ && !woken_.exchange(false);
         now = clock_.boot_ms()) {
      const auto woken = waiter_->wait(static_cast<std::uint32_t>(until - now), takes_work_);
      if (!woken) return;  // it paces its own reconnecting, and the next turn meets the store
      if (woken->reconnected) reconnected();
      bool is_ours = woken->work || woken->reconnected;
      for (const std::string& hint : woken->hints) {
        if (!hint.starts_with(mine_)) continue;
        is_ours = true;
        on_hint(std::string_view(hint).substr(mine_.size()));
      }
      if (is_ours) return;
    }
  }
  void stop() {  // any thread
    stop_ = true;
    waiter_->wake();
  }
  bool stopped() const { return stop_; }

 protected:
  // mine: how hints begin that are for it; empty: all are. It listens from here on, before the first look: nothing
  // comes in between. An error of that is one that the first turn meets.
  ContextTurns(std::unique_ptr<Waiter> waiter, const Clock& clock, std::string mine)
      : clock_(clock), waiter_(std::move(waiter)), mine_(std::move(mine)) {
    (void)waiter_->wait(0, false);
  }
  virtual ~ContextTurns() = default;
  virtual void on_hint(std::string_view /*hint*/) {}  // what stands behind `mine`
  virtual void reconnected() {}                       // hints may have been missed
  void wake() {                                       // any thread
    woken_ = true;
    waiter_->wake();
  }
  void take_work(bool wanted) { takes_work_ = wanted; }  // whether entries of queues end a rest
  Waiter& waiter() { return *waiter_; }
  const std::atomic<bool>& stopping() const { return stop_; }

  const Clock& clock_;

 private:
  std::unique_ptr<Waiter> waiter_;
  std::string mine_;
  bool takes_work_ = false;
  std::atomic<bool> stop_{false}, woken_{false};
};

// How hints of a context begin.
inline std::string hints_of(Id context) { return std::to_string(context) + ' '; }

}  // namespace mycojobs
