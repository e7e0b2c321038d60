// Whether and when a failed attempt is followed by another. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "mycojobs/job_end.h"

namespace mycojobs {

struct RetryPolicy {
  std::uint64_t min_ms = 1000, max_ms = 300000;
};

// After the k-th failure of a job (its attempt k): min * 2^(k-1), at most max, of which the upper half is left to
// chance, so that jobs that failed together do not come back together. Nothing: that was the last one, or it is a
// success, a cancel, a violation or a dead letter, or the failure forbids it. A failure may name its own pause. chance:
// uniform in [0, 1).
std::optional<std::uint64_t> retry_after(const RetryPolicy&, const JobEnd&, std::uint32_t attempt,
                                         std::uint32_t retries, double chance);

}  // namespace mycojobs
