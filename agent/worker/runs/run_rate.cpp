#include "worker/runs/run_rate.h"

#include <algorithm>
#include <chrono>

namespace mycojobs {
namespace {

// If the average time between ends is longer than this, ends are stored at once and one by one.
constexpr std::uint64_t kMaxBatchIntervalUs = 1000;
constexpr std::uint32_t kBatchDelayUs = 1500;

}  // namespace

void RunRate::on_run_ended(std::uint64_t now_us) {
  const std::uint64_t last_us = last_end_us_.exchange(now_us, std::memory_order_relaxed);
  const std::uint64_t interval_us = std::min(kSlowIntervalUs, now_us > last_us ? now_us - last_us : 0);
  const std::uint64_t mean_us = mean_us_.load(std::memory_order_relaxed);
  mean_us_.store((mean_us * 7 + interval_us) / 8, std::memory_order_relaxed);
}

void RunRate::on_claim_ahead_failed() { mean_us_.store(kSlowIntervalUs, std::memory_order_relaxed); }

std::uint64_t RunRate::mean_interval_us(std::uint64_t now_us) const {
  const std::uint64_t last_us = last_end_us_.load(std::memory_order_relaxed);
  return std::max<std::uint64_t>(
      {1, mean_us_.load(std::memory_order_relaxed), now_us > last_us ? now_us - last_us : 0});
}

std::uint32_t RunRate::claim_ahead_count(std::uint64_t now_us) const {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(kMaxClaimedAhead, kClaimAheadUs / mean_interval_us(now_us)));
}

std::uint32_t RunRate::report_batch_delay_us(std::uint64_t now_us) const {
  return mean_interval_us(now_us) < kMaxBatchIntervalUs ? kBatchDelayUs : 0;
}

std::uint64_t steady_now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace mycojobs
