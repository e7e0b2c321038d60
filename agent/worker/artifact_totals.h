// How much disk space the artifacts of a context take on this host, for metrics and `doctor`. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "mycojobs/records.h"

namespace mycojobs {

struct ArtifactTotals {
  std::uint64_t bytes = 0;  // of all callers
  Id largest_caller = 0;    // the caller that has most, or 0
  std::uint64_t largest_bytes = 0;
};
// Returns the sums over all stores that the folder of the context has counts for (artifact_usage.h). The counts are
// read without their locks, since a count is replaced as a whole. Counts that are missing or damaged are left out.
ArtifactTotals artifact_totals(const std::string& state_dir, Id context);

}  // namespace mycojobs
