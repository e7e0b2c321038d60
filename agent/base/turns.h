// A thread for work that comes in turns. What takes turns has none of its own, so that a simulation can call it:
//
//   turn()     does what is due; what it returns says how long it may rest
//   rest()     waits for so long, or until there is something to do
//   stop()     any thread: ends a rest, and a turn early; stopped() is true from then on
//   ended()    if there is one: after the last turn, in the same thread
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/mailbox.h"
#include "base/thread.h"

namespace mycojobs {

template <class T>
class TurnThread {
 public:
  // name: of the thread, its first 15 bytes; empty: that of who begins it.
  // Where no thread can be had, started() is the error, and no turn is taken.
  explicit TurnThread(T& of, const std::string& name = {}) : of_(of) {
    auto thread = start_thread(
        [&of] {
          while (!of.stopped()) of.rest(of.turn());
          if constexpr (requires { of.ended(); }) of.ended();
        },
        name);
    if (thread) {
      thread_ = std::move(*thread);
    } else {
      started_ = tl::unexpected<Error>(std::move(thread).error());
    }
  }
  ~TurnThread() { stop(); }
  TurnThread(const TurnThread&) = delete;
  TurnThread& operator=(const TurnThread&) = delete;
  [[nodiscard]] const Result<void>& started() const { return started_; }
  void stop() {
    if (!thread_.joinable()) return;
    of_.stop();
    thread_.join();
  }

 private:
  T& of_;
  Result<void> started_;
  std::thread thread_;
};

// Until the descriptor is readable, or the time is over. False: it is over. Nothing: there is no such time.
inline bool wait_readable(int fd, std::optional<std::uint64_t> ms) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, ms ? static_cast<int>(std::min<std::uint64_t>(*ms, INT_MAX)) : -1) > 0;
}

// The base of what only rests until its time is over, or until it is woken.
class TurnTaker {
 public:
  TurnTaker(const TurnTaker&) = delete;
  TurnTaker& operator=(const TurnTaker&) = delete;
  void rest(std::uint64_t ms) {
    wait_readable(bell(), ms);
    heard();
  }
  void stop() {
    stop_ = true;
    wake();
  }
  bool stopped() const { return stop_; }

 protected:
  TurnTaker() = default;
  ~TurnTaker() = default;
  void wake() { bell_.wake(); }            // any thread
  int bell() const { return bell_.fd(); }  // readable when somebody has woken it
  void heard() { bell_.take(); }

 private:
  Mailbox<int> bell_;
  std::atomic<bool> stop_{false};
};

}  // namespace mycojobs
