// Limits how much CPU all helpers of a launcher together spend on counting for jobs: a tenth of one CPU, since it is
// charged to no job. The helpers are processes, so the state is in memory that they share. Uses no clock: all times are
// arguments. Thread-safe.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

namespace mycojobs::sandbox {

class CountPace {
 public:
  static constexpr std::uint64_t kMinIntervalUs = 50'000;

  // Returns the pace of this process and of all processes that it forks afterwards, or null if there is no memory.
  static CountPace* shared() {
    static CountPace* const pace = [] {
      void* const page = ::mmap(nullptr, sizeof(CountPace), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      return page == MAP_FAILED ? nullptr : new (page) CountPace();
    }();
    return pace;
  }

  // Reserves the next count and returns its time. Counts are scheduled in the order of the calls.
  std::uint64_t reserve(std::uint64_t now_us) {
    std::uint64_t next = next_us_;
    std::uint64_t reserved_us = 0;
    do {
      reserved_us = std::max(now_us, next);
    } while (!next_us_.compare_exchange_weak(next, reserved_us + kMinIntervalUs));
    return reserved_us;
  }
  // To be called after the count. Delays the following counts if this count took longer than a tenth of the interval.
  void charge(std::uint64_t cpu_us) {
    if (10 * cpu_us > kMinIntervalUs) next_us_ += 10 * cpu_us - kMinIntervalUs;
  }

 private:
  std::atomic<std::uint64_t> next_us_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace mycojobs::sandbox
