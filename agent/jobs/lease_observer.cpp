#include "jobs/lease_observer.h"

#include <algorithm>
#include <utility>

namespace mycojobs {

std::vector<Lease> LeaseObserver::find_unrenewed(const std::vector<Lease>& leases, std::uint64_t request_ms,
                                                 std::uint64_t reply_ms, std::uint64_t min_ms) {
  std::vector<Lease> unrenewed;
  std::map<std::string, Observation> observations;
  next_expiry_ms_ = UINT64_MAX;
  for (const Lease& lease : leases) {
    const auto previous = observations_.find(lease.job_key);
    const bool is_known = previous != observations_.end() && previous->second.until_ms == lease.until_ms;
    const Observation observation = is_known ? previous->second : Observation{lease.until_ms, reply_ms};
    const std::uint64_t expiry_ms = observation.since_boot_ms + std::max(min_ms, lease.lease_ms);
    observations[lease.job_key] = observation;
    if (is_known && request_ms >= expiry_ms) {
      unrenewed.push_back(lease);
    } else {
      next_expiry_ms_ = std::min(next_expiry_ms_, expiry_ms);
    }
  }
  observations_ = std::move(observations);
  return unrenewed;
}

}  // namespace mycojobs
