// Observes on the clock of this host which leases are renewed. The store's clock may jump, so a lease that has expired
// by that clock alone does not allow another agent to claim the job. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "store/lease_store.h"

namespace mycojobs {

class LeaseObserver {
 public:
  // Returns the leases that this host has observed without a renewal for their whole length and for at least `min_ms`.
  // `leases` are all leases of the store. request_ms and reply_ms are start and end of the query on CLOCK_BOOTTIME;
  // they are far apart if the process was suspended.
  std::vector<Lease> find_unrenewed(const std::vector<Lease>& leases, std::uint64_t request_ms, std::uint64_t reply_ms,
                                    std::uint64_t min_ms);
  // Returns the time on CLOCK_BOOTTIME at which the first of the observed leases can be unrenewed, or UINT64_MAX.
  std::uint64_t next_expiry_ms() const { return next_expiry_ms_; }
  // Clears all observations. Must be called when the store was unreachable, because no owner could renew a lease.
  void clear_observations() {
    observations_.clear();
    next_expiry_ms_ = UINT64_MAX;
  }

 private:
  struct Observation {
    std::uint64_t until_ms = 0;       // end of the lease as stored
    std::uint64_t since_boot_ms = 0;  // time of the first query that returned this end
  };
  std::map<std::string, Observation> observations_;  // by job key
  std::uint64_t next_expiry_ms_ = UINT64_MAX;
};

}  // namespace mycojobs
