// What jobs keep in a context's Redis, and the quotas of it, as scripts/lib/kept.lua counts them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct KeptUsage {
  std::uint64_t bytes = 0;  // of all callers
  // The quotas that the last agent or coordinator has enforced; 0: any number of bytes.
  std::uint64_t caller_quota = 0, context_quota = 0;
};
// Nothing counted: zeros. Error: of the store.
Result<KeptUsage> kept_usage(RecordStore&, Id context);
// Of one caller, in bytes.
Result<std::uint64_t> kept_by_caller(RecordStore&, Id context, Id caller);
// The caller that keeps most, and how much; none: 0 and 0.
Result<std::pair<Id, std::uint64_t>> largest_keeper(RecordStore&, Id context);

}  // namespace mycojobs
