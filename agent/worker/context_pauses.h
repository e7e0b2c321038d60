// Whose store is away waits its turn, so that the time which that store takes to fail is not taken from other contexts.
// Owned by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "mycojobs/clock.h"
#include "mycojobs/records.h"
#include "worker/store_health.h"

namespace mycojobs {

class ContextPauses {
 public:
  explicit ContextPauses(const Clock& clock) : clock_(clock) {}

  // How long until the context may be tried; 0: now.
  std::uint64_t left_ms(Id context) const {
    const auto found = pauses_.find(context);
    const std::uint64_t now = clock_.boot_ms();
    return found == pauses_.end() || found->second.until_boot_ms <= now ? 0 : found->second.until_boot_ms - now;
  }
  bool may_try(Id context) const { return left_ms(context) == 0; }

  void worked(Id context) { pauses_.erase(context); }
  // As long again as it took to fail, and more with each failure.
  void failed(Id context, std::uint64_t began_boot_ms) {
    Pause& pause = pauses_[context];
    const std::uint64_t now = clock_.boot_ms();
    pause.until_boot_ms =
        2 * now - std::min(began_boot_ms, now) + static_cast<std::uint64_t>(retry_pause_ms(++pause.failures));
  }

 private:
  struct Pause {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  const Clock& clock_;
  std::map<Id, Pause> pauses_;
};

}  // namespace mycojobs
