// Leases as observed by this host. The store's clock may jump, so an expired lease by that clock alone does not allow
// another agent to take the job over.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "store/store.h"

namespace mycojobs {

class LeaseObserver {
 public:
  // Returns the leases among `all` (all leases of the store) that this host has observed without a renewal for their
  // whole length and for at least `least_ms`. asked, answered: start and end of the query on CLOCK_BOOTTIME in ms; they
  // are far apart if the process was suspended.
  std::vector<Lease> unrenewed(const std::vector<Lease>& all, std::uint64_t asked, std::uint64_t answered,
                               std::uint64_t least_ms);
  // Clears all observations. Must be called when the store was unreachable, because no owner could renew a lease.
  void clear_observations() { seen_.clear(); }

 private:
  struct Observation {
    std::uint64_t until_ms = 0;  // as stored
    std::uint64_t since_boot_ms = 0;
  };
  std::map<std::string, Observation> seen_;  // by job key
};

}  // namespace mycojobs
