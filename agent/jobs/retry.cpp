#include "jobs/retry.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace mycojobs {
namespace {

// Ends that another attempt would repeat. A result over its limit belongs to a job whose work is done.
constexpr std::array<std::string_view, 5> kFinal{"cancelled", "violation", "dead_letter", "result_too_large",
                                                 "result_quota"};
constexpr std::uint64_t kMaxDurationMs = 365ULL * 24 * 3600 * 1000;  // maximum of a pause that a failure sets

std::uint64_t back_off_ms(const RetryPolicy& policy, std::uint32_t attempt) {
  std::uint64_t pause = std::min(policy.min_ms, policy.max_ms);
  for (std::uint32_t k = 1; k < attempt && pause > 0 && pause < policy.max_ms; ++k) {
    pause = pause > policy.max_ms / 2 ? policy.max_ms : pause * 2;
  }
  return pause;
}

}  // namespace

std::optional<std::uint64_t> retry_after(const RetryPolicy& policy, const JobEnd& end, std::uint32_t attempt,
                                         std::uint32_t retries, double chance) {
  if (end.status == JobStatus::finished || end.retry_forbidden || attempt > retries) return std::nullopt;
  if (std::find(kFinal.begin(), kFinal.end(), end.detail) != kFinal.end()) return std::nullopt;
  if (end.retry_after_ms) return std::min(*end.retry_after_ms, kMaxDurationMs);
  const std::uint64_t pause = back_off_ms(policy, attempt);
  const std::uint64_t open = pause / 2;
  return pause - open + static_cast<std::uint64_t>(static_cast<double>(open) * std::clamp(chance, 0.0, 1.0));
}

}  // namespace mycojobs
