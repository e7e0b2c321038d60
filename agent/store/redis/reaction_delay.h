// Delay of the reaction to an event that several processes see and only one of them can use, such as a new entry of a
// queue. A successful reaction increases the rate of reactions by a constant, and one that was too late halves the
// rate. So a process alone reacts at once, few of many processes react to an event, and, as with the congestion control
// of TCP, all processes get an equal share of the events.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace mycojobs {

class ReactionDelay {
 public:
  using Duration = std::chrono::microseconds;
  static constexpr Duration kMaxLimit{64000};  // 2 / kMinRate

  explicit ReactionDelay(std::uint64_t seed) : random_(seed) {}
  void on_success() { rate_ = std::min(rate_ + kRateIncrease, kMaxRate); }
  void on_failure() { rate_ = std::max(rate_ / 2, kMinRate); }
  // Returns the maximum delay: twice the mean pause between two reactions at the present rate.
  Duration limit() const { return rate_ < kMaxRate ? Duration(static_cast<Duration::rep>(2e6 / rate_)) : Duration{}; }
  // Returns a random delay up to the limit.
  Duration draw() { return Duration(std::uniform_int_distribution<Duration::rep>(0, limit().count())(random_)); }

 private:
  static constexpr double kMaxRate = 2000, kMinRate = 31.25, kRateIncrease = 100;  // reactions a second

  double rate_ = kMaxRate;
  std::mt19937_64 random_;
};

}  // namespace mycojobs
