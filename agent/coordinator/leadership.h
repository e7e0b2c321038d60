// Who leads a context. To lead is no right: the revisions of flows fence what anybody does. It only keeps coordinators
// from doing the same work. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "mycojobs/clock.h"
#include "mycojobs/flows.h"

namespace mycojobs {

class Leadership {
 public:
  Leadership(const Clock& clock, Id context, std::string instance, std::string where, std::uint32_t lease_ms)
      : clock_(clock),
        context_(context),
        instance_(std::move(instance)),
        where_(std::move(where)),
        lease_ms_(lease_ms) {}

  // Renews it, or tries to get it, when it is time to. Error: the store's; what we have is kept until its time is over.
  Result<void> keep(FlowStore&);
  bool leads() const { return leads_ && clock_.boot_ms() < until_boot_ms_; }
  bool newly();  // since this was last asked: what was under way is to be recovered
  void give_back(FlowStore&);
  std::uint64_t next_boot_ms() const { return next_boot_ms_; }

 private:
  const Clock& clock_;
  Id context_;
  std::string instance_, where_;
  std::uint32_t lease_ms_;
  bool leads_ = false, newly_ = false;
  std::uint64_t until_boot_ms_ = 0, next_boot_ms_ = 0;
};

}  // namespace mycojobs
