// Decides whether and when a failed attempt is retried. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "model/job_end.h"

namespace mycojobs {

struct RetryPolicy {
  std::uint64_t min_ms = 1000, max_ms = 300000;
};

// Returns the pause before the next attempt. After attempt k the pause is min_ms * 2^(k-1), at most max_ms. The upper
// half of the pause is random, so that jobs that failed at the same time are not retried at the same time; `chance` is
// a random number in [0, 1). A failure may set its own pause. Returns no value if that was the last attempt, if the
// failure forbids a retry, or if the end is a success, a cancellation, a policy violation or a dead letter.
std::optional<std::uint64_t> compute_retry_delay_ms(const RetryPolicy&, const JobEnd&, std::uint32_t attempt,
                                                    std::uint32_t retries, double chance);

}  // namespace mycojobs
