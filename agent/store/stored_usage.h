// Bytes that jobs store in the Redis of a context, and their quotas, as counted by scripts/lib/stored_usage.lua. The
// functions are blocking, and are called on the thread of the store.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/record_store.h"

namespace mycojobs {

struct StoredBytesUsage {
  std::uint64_t bytes = 0;  // sum of all callers
  // Quotas that the last agent or coordinator enforced; 0 means no limit.
  std::uint64_t caller_quota = 0, context_quota = 0;
};
// Returns zeros if nothing was counted. Errors are those of the store.
Result<StoredBytesUsage> stored_usage(RecordStore&, Id context);
// Returns the bytes of one caller.
Result<std::uint64_t> stored_by_caller(RecordStore&, Id context, Id caller);
// Returns the caller that stores most bytes, and that number of bytes; 0 and 0 if nothing was counted.
Result<std::pair<Id, std::uint64_t>> largest_storage_user(RecordStore&, Id context);

}  // namespace mycojobs
