// Decides whether runs can be started on this host: the launcher must be alive, and the host must have the resources
// for another run. Determines when a new launcher is started and for how long no jobs are claimed, and logs each reason
// once. Uses no thread and no clock: all times are arguments, on CLOCK_BOOTTIME.
//
//   ready --on_launcher_died(), every kRestartDelayMs--> dead --on_launcher_ready()--> ready
//     '---on_start_failed()--> paused for kRestartDelayMs, doubled for each further failure up to kMaxPauseMs --> ready
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/result.h"

namespace mycojobs {

class LauncherMonitor {
 public:
  static constexpr std::uint64_t kRestartDelayMs = 500, kMaxPauseMs = 32'000;

  // Returns whether a run can be started now, as far as is known. Thread-safe.
  bool can_start_runs(std::uint64_t now_boot_ms) const { return is_launcher_alive_ && now_boot_ms >= paused_until_ms_; }
  bool is_launcher_alive() const { return is_launcher_alive_; }  // Thread-safe.
  // Returns why no runs can be started, or an empty text. After a pause the reason is kept until new runs have had time
  // to fail, so that it does not alternate with each attempt. Thread-safe.
  std::string unavailable_reason(std::uint64_t now_boot_ms) const;

  // The following functions must be called by one thread.
  //
  // Reports that the launcher is dead; called in each iteration until a new launcher is alive. Returns whether to start
  // a new launcher now. The caller passes the result of the start to on_launcher_ready().
  bool on_launcher_died(std::uint64_t now_boot_ms);
  void on_launcher_ready(const Result<void>&);
  // Reports that a run could not be started, for example for lack of descriptors, so that the next run would fail too.
  // Returns whether a pause begins. Runs that fail during a pause were started before the pause and do not prolong it.
  bool on_start_failed(std::uint64_t now_boot_ms, const std::string& reason);

 private:
  std::uint64_t next_restart_ms_ = 0, pause_ms_ = 0;
  std::atomic<bool> is_launcher_alive_{true};
  std::atomic<std::uint64_t> paused_until_ms_{0}, reason_until_ms_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_: the last reasons, so that each reason is logged once.
  std::string launcher_error_, shortage_;
};

}  // namespace mycojobs
