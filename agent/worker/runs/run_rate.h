// Measures how fast runs end. This determines how many jobs are claimed ahead of the slots, and how long ends are
// gathered for one call of the store. If runs are long or rare, both are 0, so a single job is not delayed.
#pragma once

#include <atomic>
#include <cstdint>

namespace mycojobs {

class RunRate {
 public:
  // Times in us on a monotonic clock. To be called by one thread.
  void on_run_ended(std::uint64_t now_us);
  void
  on_claim_ahead_failed();  // a job that was claimed ahead did not begin in time: none is claimed ahead for a while

  // Thread-safe.
  std::uint32_t claim_ahead_count(
      std::uint64_t now_us) const;  // number of runs that end within kAheadUs, at most kMaxClaimedAhead
  std::uint32_t report_batch_us(std::uint64_t now_us) const;

  static constexpr std::uint64_t kAheadUs = 20'000;
  static constexpr std::uint32_t kMaxClaimedAhead = 64;

 private:
  static constexpr std::uint64_t kSlow = 1'000'000;
  std::uint64_t between_us(std::uint64_t now_us) const;

  std::atomic<std::uint64_t> mean_us_{kSlow};  // average time between two ends, over about the last eight
  std::atomic<std::uint64_t> last_us_{0};
};

std::uint64_t steady_us();  // Returns the current time of this clock.

}  // namespace mycojobs
