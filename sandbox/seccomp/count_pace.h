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

  // The pace of this process and of all processes that it forks afterwards. Null: no memory.
  static CountPace* shared() {
    static CountPace* const pace = [] {
      void* const page = ::mmap(nullptr, sizeof(CountPace), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      return page == MAP_FAILED ? nullptr : new (page) CountPace();
    }();
    return pace;
  }

  // Reserves the next turn and returns its time. Turns are given in the order of the calls.
  std::uint64_t reserve(std::uint64_t now_us) {
    std::uint64_t next = next_us_;
    std::uint64_t turn = 0;
    do {
      turn = std::max(now_us, next);
    } while (!next_us_.compare_exchange_weak(next, turn + kMinIntervalUs));
    return turn;
  }
  // To be called after the count. Delays the following turns if it took longer than a tenth of the interval.
  void charge(std::uint64_t took_us) {
    if (10 * took_us > kMinIntervalUs) next_us_ += 10 * took_us - kMinIntervalUs;
  }

 private:
  std::atomic<std::uint64_t> next_us_{0};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace mycojobs::sandbox
