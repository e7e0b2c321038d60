#include "jobs/lease_observer.h"

#include <algorithm>
#include <utility>

namespace mycojobs {

std::vector<Lease> LeaseObserver::unrenewed(const std::vector<Lease>& all, std::uint64_t asked, std::uint64_t answered,
                                            std::uint64_t least_ms) {
  std::vector<Lease> found;
  std::map<std::string, Observation> now;
  for (const Lease& lease : all) {
    const auto before = seen_.find(lease.job_key);
    if (before == seen_.end() || before->second.until_ms != lease.until_ms) {
      now[lease.job_key] = {lease.until_ms, answered};
      continue;
    }
    now[lease.job_key] = before->second;
    if (asked - before->second.since_boot_ms >= std::max(least_ms, lease.lease_ms)) found.push_back(lease);
  }
  seen_ = std::move(now);
  return found;
}

}  // namespace mycojobs
