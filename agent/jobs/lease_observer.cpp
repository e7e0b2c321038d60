#include "jobs/lease_observer.h"

#include <algorithm>
#include <utility>

namespace mycojobs {

std::vector<Lease> LeaseObserver::find_unrenewed(const std::vector<Lease>& leases, std::uint64_t request_ms,
                                                 std::uint64_t reply_ms, std::uint64_t min_ms) {
  std::vector<Lease> unrenewed;
  std::map<std::string, Observation> observations;
  for (const Lease& lease : leases) {
    const auto previous = observations_.find(lease.job_key);
    if (previous == observations_.end() || previous->second.until_ms != lease.until_ms) {
      observations[lease.job_key] = {lease.until_ms, reply_ms};
      continue;
    }
    observations[lease.job_key] = previous->second;
    if (request_ms - previous->second.since_boot_ms >= std::max(min_ms, lease.lease_ms)) unrenewed.push_back(lease);
  }
  observations_ = std::move(observations);
  return unrenewed;
}

}  // namespace mycojobs
