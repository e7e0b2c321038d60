#include "worker/runs/launcher_monitor.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {

bool LauncherWatch::try_now(std::uint64_t now_boot_ms) {
  if (now_boot_ms < next_try_ms_) return false;
  if (ready_.exchange(false))
    log(LogLevel::error, "sandbox", "the launcher has exited: its jobs are returned to their queues");
  next_try_ms_ = now_boot_ms + kReviveMs;
  return true;
}

void LauncherWatch::on_launcher_ready(const Result<void>& restarted) {
  const std::lock_guard lock(mutex_);
  if (!restarted) {
    if (restarted.error().message != no_launcher_)
      log(LogLevel::error, "sandbox", "no launcher: {}", restarted.error().message);
    no_launcher_ = restarted.error().message;
    return;
  }
  no_launcher_.clear();
  ready_ = true;
  log(LogLevel::info, "sandbox", "a new launcher is ready");
}

bool LauncherWatch::failed_to_start(std::uint64_t now_boot_ms, const std::string& why) {
  if (now_boot_ms < paused_until_ms_) return false;
  const bool again = pause_ms_ > 0 && now_boot_ms < reason_until_ms_;
  pause_ms_ = again ? std::min(2 * pause_ms_, kMaxPauseMs) : kReviveMs;
  paused_until_ms_ = now_boot_ms + pause_ms_;
  reason_until_ms_ = paused_until_ms_ + pause_ms_ + 2 * kReviveMs;
  const std::lock_guard lock(mutex_);
  if (!again || why != shortage_)
    log(LogLevel::error, "sandbox", "no jobs are claimed for {} ms, and longer each time: {}", pause_ms_, why);
  shortage_ = why;
  return true;
}

std::string LauncherWatch::unavailable_reason(std::uint64_t now_boot_ms) const {
  const std::lock_guard lock(mutex_);
  if (!ready_) {
    // The text is public. The description of a shortage contains no paths.
    const std::size_t shortage = no_launcher_.find("out of ");
    return shortage == std::string::npos ? "no sandbox is available: see the log" : no_launcher_.substr(shortage);
  }
  return now_boot_ms < reason_until_ms_ ? shortage_ : "";
}

}  // namespace mycojobs
