// Compares the counters of the memory that jobs use in Redis (mj:stored-bytes, scripts/lib/stored_usage.lua) with the
// claims of the jobs. For verify() and rebuild().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/invariants.h"
#include "store/store.h"

namespace mycojobs {

struct StoredBytesProblem {
  Finding finding;
  std::string field;                  // field of mj:stored-bytes: a caller, or "all"
  bool is_counter_too_large = false;  // the counter is larger than the sum of the claims
  std::uint64_t difference = 0;       // in bytes
};
// Returns the counters that differ from the claims by the same number of bytes in two reads, so that jobs that are
// added or removed between the reads are not reported. Reports nothing while jobs change the counters. pause: waits
// between the reads.
Result<std::vector<StoredBytesProblem>> find_stored_bytes_problems(Store&, Id context,
                                                                   const std::function<void()>& pause);
// Corrects the counter by the difference, so that changes made since are preserved.
Result<void> repair_stored_bytes(Store&, Id context, const StoredBytesProblem&);

}  // namespace mycojobs
