#include "worker/launcher_watch.h"

#include "base/log.h"

namespace mycojobs {

bool LauncherWatch::try_now(std::uint64_t now_boot_ms) {
  if (now_boot_ms < next_try_ms_) return false;
  if (ready_.exchange(false)) log(LogLevel::error, "sandbox", "the launcher is gone: its jobs go back to their queues");
  next_try_ms_ = now_boot_ms + kReviveMs;
  return true;
}

void LauncherWatch::revived(const Result<void>& restarted) {
  if (!restarted) {
    if (restarted.error().message != why_not_)
      log(LogLevel::error, "sandbox", "no launcher: {}", restarted.error().message);
    why_not_ = restarted.error().message;
    return;
  }
  why_not_.clear();
  ready_ = true;
  log(LogLevel::info, "sandbox", "a new launcher is ready");
}

}  // namespace mycojobs
