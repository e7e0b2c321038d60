// The leadership of a context: a lease in Redis that one coordinator holds at a time. Leadership only avoids duplicate
// work between coordinators. It is not needed for correctness, since every write to a flow is fenced by the revision of
// the flow.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "store/flow_store.h"

namespace mycojobs {

// Not thread-safe. The clock must outlive the object.
class Leadership {
 public:
  // `instance` is a random id of this process. `location` is host and pid, shown to operators.
  Leadership(const Clock& clock, Id context, std::string instance, std::string location, std::uint32_t lease_ms);

  // Renews the leadership, or tries to acquire it, when the interval has passed. After an error of the store, a held
  // leadership stays valid until its lease expires.
  Result<void> renew(FlowStore&);
  bool is_leader() const { return is_leader_ && clock_.boot_ms() < lease_end_boot_ms_; }
  // Returns whether leadership was acquired since the previous call, so that active flows must be recovered.
  bool pop_acquired();
  // Releases a held leadership, so that another coordinator can acquire it before the lease expires.
  void release(FlowStore&);
  // Returns the time of the next renewal or attempt, on Clock::boot_ms().
  std::uint64_t next_renewal_boot_ms() const { return next_renewal_boot_ms_; }

 private:
  const Clock& clock_;
  Id context_;
  std::string instance_, location_;
  std::uint32_t lease_ms_;
  bool is_leader_ = false;     // the result of the last renewal; the lease may have expired since
  bool was_acquired_ = false;  // since the last pop_acquired()
  std::uint64_t lease_end_boot_ms_ = 0, next_renewal_boot_ms_ = 0;
};

}  // namespace mycojobs
