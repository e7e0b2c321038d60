// Whether runs can be started here: the launcher lives, and the last start did not just fail. Decides when a new
// launcher is tried, and says once what is wrong. No thread and no clock: moments come in, on CLOCK_BOOTTIME.
//
//   ready --the launcher dies--> gone --try_now(), every kReviveMs--> revived() --> ready
//     '---failed_to_start()--> rests for kReviveMs --> ready
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "mycojobs/result.h"

namespace mycojobs {

class LauncherWatch {
 public:
  static constexpr std::uint64_t kReviveMs = 500;

  // Any thread: a run that is started now has a launcher, as far as is known.
  bool may_start(std::uint64_t now_boot_ms) const { return ready_ && now_boot_ms >= resting_until_ms_; }
  bool ready() const { return ready_; }  // no launcher is looked for

  // One thread.
  // The launcher is gone. True: try a new one now, and say in revived() what came of it.
  bool try_now(std::uint64_t now_boot_ms);
  void revived(const Result<void>&);
  // A run could not be started, for want of descriptors, say: what failed once fails again at once.
  void failed_to_start(std::uint64_t now_boot_ms) { resting_until_ms_ = now_boot_ms + kReviveMs; }

 private:
  std::uint64_t next_try_ms_ = 0;
  std::string why_not_;  // the last reason, so that it is logged once
  std::atomic<bool> ready_{true};
  std::atomic<std::uint64_t> resting_until_ms_{0};
};

}  // namespace mycojobs
