// When a plugin that fails again and again may be tried: kFaults in a row are answered at once by a new host, then it
// rests, 1 s at first and twice as long after each further fault, 60 s at most. A call that works ends all of that.
// After a fault that took its time it rests four times as long, so that a context whose scripts hang it takes no more
// than a fifth of the time of those that wait for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mycojobs::plugin {

class Rest {
 public:
  static constexpr std::uint32_t kFaults = 3;
  static constexpr std::uint64_t kShortestMs = 1000, kLongestMs = 60000, kSlowMs = 150;

  void failed(std::uint64_t now_boot_ms, std::uint64_t took_ms = 0) {
    until_boot_ms_ = now_boot_ms + (took_ms < kSlowMs ? 0 : took_ms * 4);
    if (++faults_ < kFaults) return;
    pause_ms_ = pause_ms_ == 0 ? kShortestMs : std::min(pause_ms_ * 2, kLongestMs);
    until_boot_ms_ = std::max(until_boot_ms_, now_boot_ms + pause_ms_);
  }
  void worked() { *this = Rest(); }
  // 0: it may be tried now.
  std::uint64_t left_ms(std::uint64_t now_boot_ms) const {
    return now_boot_ms >= until_boot_ms_ ? 0 : until_boot_ms_ - now_boot_ms;
  }
  std::uint32_t faults() const { return faults_; }

 private:
  std::uint32_t faults_ = 0;
  std::uint64_t pause_ms_ = 0, until_boot_ms_ = 0;
};

}  // namespace mycojobs::plugin
