// Decides whether runs can be started on this host: the launcher must be alive, and the host must have the resources
// for another run. Determines when a new launcher is started and for how long no jobs are claimed, and logs each reason
// once. Uses no thread and no clock: all times are arguments, on CLOCK_BOOTTIME.
//
//   ready --the launcher dies--> gone --try_now(), every kReviveMs--> on_launcher_ready() --> ready
//     '---failed_to_start()--> pauses for kReviveMs, twice as long each time, kMaxPauseMs at most --> ready
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.h"

namespace mycojobs {

class LauncherWatch {
 public:
  static constexpr std::uint64_t kReviveMs = 500, kMaxPauseMs = 32'000;

  // Returns whether a run can be started now, as far as is known. Thread-safe.
  bool may_start(std::uint64_t now_boot_ms) const { return ready_ && now_boot_ms >= paused_until_ms_; }
  bool ready() const { return ready_; }  // The launcher is alive. Thread-safe.
  // Returns why no runs can be started, or an empty text. After a pause the reason is kept until new runs have had time
  // to fail, so that it does not alternate with each attempt. Thread-safe.
  std::string unavailable_reason(std::uint64_t now_boot_ms) const;

  // The following functions must be called by one thread.
  //
  // Reports that the launcher is dead. Returns whether to start a new one now; the result is then passed to
  // on_launcher_ready().
  bool try_now(std::uint64_t now_boot_ms);
  void on_launcher_ready(const Result<void>&);
  // Reports that a run could not be started, for example for lack of descriptors, so that the next run would fail too.
  // Returns whether a pause begins. Runs that fail within a pause were started before it and do not prolong it.
  bool failed_to_start(std::uint64_t now_boot_ms, const std::string& why);

 private:
  std::uint64_t next_try_ms_ = 0, pause_ms_ = 0;
  std::atomic<bool> ready_{true};
  std::atomic<std::uint64_t> paused_until_ms_{0}, reason_until_ms_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_: the last reasons, so that each is logged once.
  std::string no_launcher_, shortage_;
};

}  // namespace mycojobs
