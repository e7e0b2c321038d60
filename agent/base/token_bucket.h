// A token bucket that may be overdrawn: it is then empty until the debt is refilled. Uses no clock: all times are
// arguments. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mycojobs {

class TokenBucket {
 public:
  // rate: tokens per second; if 0, the bucket is never empty.
  TokenBucket(std::uint64_t rate, std::uint64_t burst) : rate_(rate), burst_(burst), level_(clamp_tokens(burst)) {}

  void consume(std::uint64_t amount, std::uint64_t now_ms) {
    refill(now_ms);
    level_ -= clamp_tokens(amount);
  }
  // Returns the number of tokens; 0 if the bucket is empty.
  std::uint64_t available(std::uint64_t now_ms) {
    refill(now_ms);
    return static_cast<std::uint64_t>(std::max<std::int64_t>(level_, 0));
  }
  // Returns how long the bucket is empty from `now_ms` on; 0 if it is not empty.
  std::uint64_t empty_ms(std::uint64_t now_ms) {
    refill(now_ms);
    if (rate_ == 0 || level_ >= 0) return 0;
    return (static_cast<std::uint64_t>(-level_) * 1000 + rate_ - 1) / rate_;
  }

 private:
  static std::int64_t clamp_tokens(std::uint64_t amount) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(amount, std::uint64_t{1} << 50));
  }
  // Adds whole tokens only: a time that is too short for a token counts in the next call.
  void refill(std::uint64_t now_ms) {
    if (rate_ == 0) return;
    if (filled_ms_ == 0) filled_ms_ = now_ms;
    const std::uint64_t ms = std::min<std::uint64_t>(now_ms - filled_ms_, std::uint64_t{24} * 3600 * 1000);
    const std::uint64_t tokens = ms * rate_ / 1000;
    if (tokens == 0) return;
    level_ = std::min(clamp_tokens(burst_), level_ + clamp_tokens(tokens));
    filled_ms_ = now_ms;
  }

  std::uint64_t rate_, burst_;
  std::int64_t level_;
  std::uint64_t filled_ms_ = 0;
};

}  // namespace mycojobs
