// Limits how fast the agent reads the pipes of one job. Reading costs CPU time of the agent, which no limit of the job
// counts. A job that writes faster than the budget allows blocks on a full pipe; no bytes are lost. Uses no clock: all
// times are arguments. Not thread-safe.
//
//   out, err   settings.bytes per second, after a burst of kBurstSeconds; redacted bytes count kRedactedWeight times
//   channel    the same rate, after a burst that is larger by settings.artifact_bytes; settings.frames per second
//   any pipe   after a small read the pipe is read again at the next tick, so that many small writes are read together
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "worker/worker_types.h"

namespace mycojobs {

// A token bucket that may be overdrawn: it is then empty until the debt is refilled.
class TokenBucket {
 public:
  // rate: tokens per second; if 0, the bucket is never empty.
  TokenBucket(std::uint64_t rate, std::uint64_t burst) : rate_(rate), burst_(burst), level_(clamp_tokens(burst)) {}

  void consume(std::uint64_t amount, std::uint64_t now_ms) {
    refill(now_ms);
    level_ -= clamp_tokens(amount);
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

class ReadBudget {
 public:
  struct Settings {
    std::uint64_t bytes = 8ULL << 20;          // per second; 0 means unlimited
    std::uint64_t frames = 10000;              // per second; 0 means unlimited
    std::uint64_t artifact_bytes = 64U << 20;  // maximum of artifacts and result
  };
  static constexpr std::uint64_t kBurstSeconds = 2;
  static constexpr std::uint64_t kRedactedWeight = 4;
  static constexpr std::uint64_t kSmallReadBytes = 4096;
  static constexpr std::uint64_t kTickMs = 5;

  // answers_calls: small messages on the channel are read at once, since the job waits for their answers.
  ReadBudget(const Settings& settings, bool has_redactor, bool answers_calls)
      : output_(settings.bytes, settings.bytes * kBurstSeconds),
        channel_(settings.bytes, settings.bytes * kBurstSeconds + settings.artifact_bytes),
        frames_(settings.frames, settings.frames * kBurstSeconds),
        weight_(has_redactor ? kRedactedWeight : 1),
        answers_calls_(answers_calls) {}

  // Charges bytes that were read from a pipe, and the number of frames in them.
  void charge(JobPipe pipe, std::uint64_t bytes, std::uint64_t frames, std::uint64_t now_ms) {
    read_bytes_[index(pipe)] += bytes;
    (pipe == JobPipe::channel ? channel_ : output_).consume(pipe == JobPipe::channel ? bytes : bytes * weight_, now_ms);
    frames_.consume(frames, now_ms);
  }
  // To be called after a pipe was read. Returns the time before which the pipe must not be read again; 0 means at once.
  std::uint64_t resume_at_ms(JobPipe pipe, std::uint64_t now_ms) {
    const std::uint64_t bytes = std::exchange(read_bytes_[index(pipe)], 0);
    const bool is_channel = pipe == JobPipe::channel;
    std::uint64_t wait = (is_channel ? channel_ : output_).empty_ms(now_ms);
    if (is_channel) wait = std::max(wait, frames_.empty_ms(now_ms));
    const bool is_small = bytes > 0 && bytes < kSmallReadBytes && !(is_channel && answers_calls_);
    if (wait == 0 && !is_small) return 0;
    const std::uint64_t resume_ms = now_ms + std::max<std::uint64_t>(wait, 1);
    return (resume_ms + kTickMs - 1) / kTickMs * kTickMs;
  }

 private:
  static std::size_t index(JobPipe pipe) { return static_cast<std::size_t>(pipe); }

  TokenBucket output_, channel_, frames_;
  std::uint64_t weight_;
  bool answers_calls_;
  std::uint64_t read_bytes_[3] = {0, 0, 0};  // bytes since the last call of resume_at_ms()
};

}  // namespace mycojobs
