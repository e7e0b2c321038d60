// Whether runs can be started here: the launcher lives, and the host has the resources for another run. Decides when a
// new launcher is tried and for how long nothing is claimed, and logs once what is wrong. No thread and no clock:
// moments come in, on CLOCK_BOOTTIME.
//
//   ready --the launcher dies--> gone --try_now(), every kReviveMs--> revived() --> ready
//     '---failed_to_start()--> pauses for kReviveMs, twice as long each time, kMaxPauseMs at most --> ready
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "mycojobs/result.h"

namespace mycojobs {

class LauncherWatch {
 public:
  static constexpr std::uint64_t kReviveMs = 500, kMaxPauseMs = 32'000;

  // Any thread: a run that is started now has a launcher, as far as is known.
  bool may_start(std::uint64_t now_boot_ms) const { return ready_ && now_boot_ms >= paused_until_ms_; }
  bool ready() const { return ready_; }  // no launcher is looked for
  // Any thread: why no runs can be started. Empty: they can. After a pause the reason is kept until runs have had time
  // to fail again, so that it does not come and go with each attempt.
  std::string why_not(std::uint64_t now_boot_ms) const;

  // One thread.
  // The launcher is gone. True: try a new one now, and say in revived() what came of it.
  bool try_now(std::uint64_t now_boot_ms);
  void revived(const Result<void>&);
  // A run could not be started, for want of descriptors, say: the next one would fail as well. True: a pause begins.
  // The runs that fail within a pause were started before it and do not prolong it.
  bool failed_to_start(std::uint64_t now_boot_ms, const std::string& why);

 private:
  std::uint64_t next_try_ms_ = 0, pause_ms_ = 0;
  std::atomic<bool> ready_{true};
  std::atomic<std::uint64_t> paused_until_ms_{0}, reason_until_ms_{0};
  mutable std::mutex mutex_;
  // Under mutex_: the last reasons, so that each is logged once.
  std::string no_launcher_, shortage_;
};

}  // namespace mycojobs
