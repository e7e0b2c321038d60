// Measures how fast runs end. This determines how many jobs are claimed ahead of the slots, and how long ends are
// gathered for one call of the store. If runs are long or rare, both are 0, so a single job is not delayed.
#pragma once

#include <atomic>
#include <cstdint>

namespace mycojobs {

class RunRate {
 public:
  // Reports the end of a run. Times are in us on the steady clock. To be called by one thread.
  void on_run_ended(std::uint64_t now_us);
  // Reports that a job that was claimed ahead did not begin in time: no job is claimed ahead for a while.
  void on_claim_ahead_failed();

  // Thread-safe.
  // Returns the number of runs that probably end within kClaimAheadUs, at most kMaxClaimedAhead.
  std::uint32_t claim_ahead_count(std::uint64_t now_us) const;
  // Returns for how long the reporter waits for further ends; 0 if ends are rare.
  std::uint32_t report_batch_delay_us(std::uint64_t now_us) const;

  static constexpr std::uint64_t kClaimAheadUs = 20'000;
  static constexpr std::uint32_t kMaxClaimedAhead = 64;

 private:
  static constexpr std::uint64_t kSlowIntervalUs = 1'000'000;
  std::uint64_t mean_interval_us(std::uint64_t now_us) const;

  std::atomic<std::uint64_t> mean_us_{kSlowIntervalUs};  // average time between two ends, over about eight ends
  std::atomic<std::uint64_t> last_end_us_{0};
};

std::uint64_t steady_now_us();  // Returns the current time of the steady clock.

}  // namespace mycojobs
