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

#include "base/token_bucket.h"
#include "worker/worker_types.h"

namespace mycojobs {

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
