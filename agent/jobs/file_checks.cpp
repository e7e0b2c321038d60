#include "jobs/file_checks.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPendingChecks = 16;

}  // namespace

FileChecks::FileChecks(const Clock& clock)
    : clock_(clock), completed_(std::make_shared<Mailbox<PathState>>()), results_(clock) {}

bool FileChecks::has_timed_out(std::uint64_t since_boot_ms) const {
  return clock_.boot_ms() - since_boot_ms >= kCheckTimeoutMs;
}

std::optional<bool> FileChecks::file_exists(const std::string& path) {
  if (const auto cached = results_.find(path)) return cached;
  const auto pending_check = pending_since_boot_ms_.find(path);
  if (pending_check != pending_since_boot_ms_.end()) {
    strands_.start_missing_threads();
    return has_timed_out(pending_check->second) ? std::optional(false) : std::nullopt;
  }
  const auto check_timed_out = [this](const auto& check) { return has_timed_out(check.second); };
  if (pending_since_boot_ms_.size() >= kMaxPendingChecks)
    return std::all_of(pending_since_boot_ms_.begin(), pending_since_boot_ms_.end(), check_timed_out)
               ? std::optional(false)
               : std::nullopt;
  strands_.post({"file " + path, mounts_.find_mount_point(path)}, [completed = completed_, path] {
    std::error_code ignored;
    completed->post({path, std::filesystem::exists(path, ignored)});
  });
  pending_since_boot_ms_[path] = clock_.boot_ms();
  return std::nullopt;
}

bool FileChecks::collect_results() {
  results_.drop_expired();
  const auto completed = completed_->consume_all();
  for (const auto& [path, exists] : completed) {
    results_.put(path, exists);
    pending_since_boot_ms_.erase(path);
  }
  return !completed.empty();
}

}  // namespace mycojobs
