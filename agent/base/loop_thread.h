// A thread that runs a loop. The looping object has no thread itself, so that a simulation can call it:
//
//   run_once() does the due work and returns how long the loop may wait
//   wait_until_due() waits for that time, or until there is work
//   stop()     thread-safe: ends a wait and shortens an iteration; stopped() is true afterwards
//   ended()    optional: called after the last iteration, in the same thread
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
class LoopThread {
 public:
  // The kernel truncates `name` to 15 bytes. Without a name the thread has the name of the creating thread. If
  // no thread can be created, started() returns the error, and run_once() is not called.
  explicit LoopThread(T& loop, const std::string& name = {}) : loop_(loop) {
    auto thread = start_thread(
        [&loop] {
          while (!loop.stopped()) loop.wait_until_due(loop.run_once());
          if constexpr (requires { loop.ended(); }) loop.ended();
        },
        name);
    if (thread) {
      thread_ = std::move(*thread);
    } else {
      started_ = tl::unexpected<Error>(std::move(thread).error());
    }
  }
  ~LoopThread() { stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  [[nodiscard]] const Result<void>& started() const { return started_; }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }

 private:
  T& loop_;
  Result<void> started_;
  std::thread thread_;
};

// Waits until the descriptor is readable or the time has passed. Returns false after the time has passed. Without `ms`
// the wait is unlimited.
inline bool wait_readable(int fd, std::optional<std::uint64_t> ms) {
  pollfd readable{fd, POLLIN, 0};
  return ::poll(&readable, 1, ms ? static_cast<int>(std::min<std::uint64_t>(*ms, INT_MAX)) : -1) > 0;
}

// Base class of loops that wait only for their time or for wake().
class TimedLoop {
 public:
  TimedLoop(const TimedLoop&) = delete;
  TimedLoop& operator=(const TimedLoop&) = delete;
  void wait_until_due(std::uint64_t ms) {
    wait_readable(wakeup_fd(), ms);
    clear_wakeup();
  }
  void stop() {
    is_stopped_ = true;
    wake();
  }
  bool stopped() const { return is_stopped_; }

 protected:
  TimedLoop() = default;
  ~TimedLoop() = default;
  void wake() { wakeup_.wake(); }                 // thread-safe
  int wakeup_fd() const { return wakeup_.fd(); }  // readable after wake()
  void clear_wakeup() { wakeup_.consume_all(); }

 private:
  Mailbox<int> wakeup_;
  std::atomic<bool> is_stopped_{false};
};

}  // namespace mycojobs
