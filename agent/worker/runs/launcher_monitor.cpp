#include "worker/runs/launcher_monitor.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {

bool LauncherMonitor::on_launcher_died(std::uint64_t now_boot_ms) {
  if (now_boot_ms < next_restart_ms_) return false;
  if (is_launcher_alive_.exchange(false))
    log(LogLevel::error, "sandbox", "the launcher has exited: its jobs are returned to their queues");
  next_restart_ms_ = now_boot_ms + kRestartDelayMs;
  return true;
}

void LauncherMonitor::on_launcher_ready(const Result<void>& restarted) {
  const std::lock_guard lock(mutex_);
  if (!restarted) {
    if (restarted.error().message != launcher_error_)
      log(LogLevel::error, "sandbox", "no launcher: {}", restarted.error().message);
    launcher_error_ = restarted.error().message;
    return;
  }
  launcher_error_.clear();
  is_launcher_alive_ = true;
  log(LogLevel::info, "sandbox", "a new launcher is ready");
}

bool LauncherMonitor::on_start_failed(std::uint64_t now_boot_ms, const std::string& reason) {
  if (now_boot_ms < paused_until_ms_) return false;
  const bool is_repeated = pause_ms_ > 0 && now_boot_ms < reason_until_ms_;
  pause_ms_ = is_repeated ? std::min(2 * pause_ms_, kMaxPauseMs) : kRestartDelayMs;
  paused_until_ms_ = now_boot_ms + pause_ms_;
  reason_until_ms_ = paused_until_ms_ + pause_ms_ + 2 * kRestartDelayMs;
  const std::lock_guard lock(mutex_);
  if (!is_repeated || reason != shortage_)
    log(LogLevel::error, "sandbox", "no jobs are claimed for {} ms, and longer each time: {}", pause_ms_, reason);
  shortage_ = reason;
  return true;
}

std::string LauncherMonitor::unavailable_reason(std::uint64_t now_boot_ms) const {
  const std::lock_guard lock(mutex_);
  if (!is_launcher_alive_) {
    // The text is public. The description of a shortage contains no paths.
    const std::size_t shortage = launcher_error_.find("out of ");
    return shortage == std::string::npos ? "no sandbox is available: see the log" : launcher_error_.substr(shortage);
  }
  return now_boot_ms < reason_until_ms_ ? shortage_ : "";
}

}  // namespace mycojobs
