#include "worker/housekeeping.h"

#include <algorithm>

#include "base/log.h"
#include "worker/types.h"

namespace mycojobs {

Result<void> Housekeeping::look_after(Store& store, Id context) {
  const std::uint64_t now = clock_.boot_ms();
  if (now < next_boot_ms_[context]) return {};
  next_boot_ms_[context] = now + std::clamp<std::uint64_t>(lease_ms_ / 10, 100, 500);
  MJ_CHECK(store.sweep_missing(context, kMissingMs));
  MJ_TRY(leases, store.leases(context));
  decltype(seen_) still;
  for (const Lease& lease : leases) {
    const auto key = std::pair(context, lease.job_key);
    const auto before = seen_.find(key);
    if (before == seen_.end() || before->second.until_ms != lease.until_ms) {
      still[key] = Seen{lease.until_ms, now};
      continue;
    }
    if (now - before->second.since_boot_ms < lease_ms_) {
      still[key] = before->second;
      continue;
    }
    MJ_TRY(expired, store.expire(context, lease));
    if (expired) {
      log(LogLevel::warn, "worker", "{}: its lease ran out; back to its queue", lease.job_key);
    } else {
      still[key] = before->second;
    }
  }
  blind(context);
  seen_.merge(still);
  return {};
}

}  // namespace mycojobs
