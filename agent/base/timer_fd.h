// A timer whose descriptor becomes readable after a time. Another thread can set it to wake a thread that already
// waits.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "base/fd.h"

namespace mycojobs {

class TimerFd {
 public:
  TimerFd() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    if (!timer_) std::abort();  // out of descriptors at start; the program cannot run
  }
  void arm(std::uint64_t ms) {  // Replaces the previous time. Thread-safe.
    constexpr long kMsPerS = 1000, kNsPerMs = 1'000'000;
    itimerspec spec{};
    spec.it_value.tv_sec = static_cast<time_t>(ms / kMsPerS);
    spec.it_value.tv_nsec = static_cast<long>(ms % kMsPerS) * kNsPerMs + 1;  // 0 would disarm the timer
    ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  }
  void acknowledge() {
    std::uint64_t times = 0;
    (void)!::read(timer_.get(), &times, sizeof times);
  }
  int fd() const { return timer_.get(); }

 private:
  Fd timer_;
};

}  // namespace mycojobs
