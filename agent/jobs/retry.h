// Decides whether and when a failed attempt is retried. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "model/job_end.h"

namespace mycojobs {

struct RetryPolicy {
  std::uint64_t min_ms = 1000, max_ms = 300000;
};

// Returns the pause after attempt k: min * 2^(k-1), at most max. The upper half of the pause is random, so that jobs
// that failed at the same time are not retried at the same time. Returns no value if that was the last attempt; if the
// end is a success, a cancellation, a policy violation or a dead letter; or if the failure forbids a retry. A failure
// may set its own pause. chance: uniform in [0, 1).
std::optional<std::uint64_t> retry_after(const RetryPolicy&, const JobEnd&, std::uint32_t attempt,
                                         std::uint32_t retries, double chance);

}  // namespace mycojobs
