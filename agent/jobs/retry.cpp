#include "jobs/retry.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace mycojobs {
namespace {

// Details of ends after which another attempt is useless. A job with a result over its limit has done its work.
constexpr std::array<std::string_view, 5> kFinalDetails{"cancelled", "violation", "dead_letter", "result_too_large",
                                                        "result_quota"};
constexpr std::uint64_t kMaxDurationMs = 365ULL * 24 * 3600 * 1000;  // maximum of a delay that a failure requests

std::uint64_t compute_backoff_ms(const RetryPolicy& policy, std::uint32_t attempt) {
  std::uint64_t delay_ms = std::min(policy.min_ms, policy.max_ms);
  for (std::uint32_t i = 1; i < attempt && delay_ms > 0 && delay_ms < policy.max_ms; ++i) {
    delay_ms = delay_ms > policy.max_ms / 2 ? policy.max_ms : delay_ms * 2;
  }
  return delay_ms;
}

}  // namespace

std::optional<std::uint64_t> compute_retry_delay_ms(const RetryPolicy& policy, const JobEnd& end, std::uint32_t attempt,
                                                    std::uint32_t retries, double chance) {
  if (end.status == JobStatus::finished || end.retry_forbidden || attempt > retries) return std::nullopt;
  if (std::find(kFinalDetails.begin(), kFinalDetails.end(), end.detail) != kFinalDetails.end()) return std::nullopt;
  if (end.retry_after_ms) return std::min(*end.retry_after_ms, kMaxDurationMs);
  const std::uint64_t delay_ms = compute_backoff_ms(policy, attempt);
  const std::uint64_t random_part = delay_ms / 2;
  return delay_ms - random_part +
         static_cast<std::uint64_t>(static_cast<double>(random_part) * std::clamp(chance, 0.0, 1.0));
}

}  // namespace mycojobs
