// How fast runs end here, which says how far ahead of the slots jobs may be claimed, and how long ends may be gathered
// for one trip to the store. Where runs are long, or seldom, both are 0: a single job pays nothing for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace mycojobs {

class Pace {
 public:
  // Moments in us on a clock that only goes forward. One thread.
  void ended(std::uint64_t now_us);
  void stalled();  // a job that was claimed ahead has not begun in time: none is for a while

  // Any thread.
  std::uint32_t ahead(std::uint64_t now_us) const;  // so many runs end within kAheadUs; kMostAhead at most
  std::uint32_t gather_us(std::uint64_t now_us) const;

  static constexpr std::uint64_t kAheadUs = 20'000;
  static constexpr std::uint32_t kMostAhead = 64;

 private:
  static constexpr std::uint64_t kSlow = 1'000'000;
  std::uint64_t between_us(std::uint64_t now_us) const;

  std::atomic<std::uint64_t> mean_us_{kSlow};  // between two ends: the mean of about the last eight
  std::atomic<std::uint64_t> last_us_{0};
};

std::uint64_t steady_us();  // now, on such a clock

}  // namespace mycojobs
