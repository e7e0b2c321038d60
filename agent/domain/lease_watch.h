// Leases as this host sees them. The store's clock may jump, so that it says that one has run out is not enough to take
// a job from whoever holds it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

class LeaseWatch {
 public:
  // Of all leases that the store has: those that have been seen without renewal for as long as each is, and for
  // `least_ms`. Asked and answered: when, on CLOCK_BOOTTIME in ms; much lies between them if the process stood still.
  std::vector<Lease> unrenewed(const std::vector<Lease>& all, std::uint64_t asked, std::uint64_t answered,
                               std::uint64_t least_ms);
  // The store was away, and nobody could renew: nothing that was seen before counts.
  void blind() { seen_.clear(); }

 private:
  struct Seen {
    std::uint64_t until_ms = 0;  // as the store has it
    std::uint64_t since_boot_ms = 0;
  };
  std::map<std::string, Seen> seen_;  // by job
};

}  // namespace mycojobs
