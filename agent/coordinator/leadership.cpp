#include "coordinator/leadership.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mycojobs {
namespace {

// Somebody who waits takes over so soon after the other's time is over.
constexpr std::uint64_t kLookMs = 500;

}  // namespace

Result<void> Leadership::keep(FlowStore& store) {
  const std::uint64_t now = clock_.boot_ms();
  const bool had = leads();
  if (!had && leads_) {
    log(LogLevel::warn, "coordinator", "context {}: we have not led for a while: stopped, or the store was away",
        context_);
    leads_ = false;
    next_boot_ms_ = now;
  }
  if (now < next_boot_ms_) return {};
  auto ours = store.lead(context_, instance_, where_, lease_ms_);
  if (!ours) return tl::unexpected<Error>(std::move(ours).error());  // the next round asks again
  next_boot_ms_ = clock_.boot_ms() + std::min<std::uint64_t>(lease_ms_ / 4, kLookMs);
  if (*ours) {
    // Counted from before it was sent.
    until_boot_ms_ = now + lease_ms_;
    next_boot_ms_ = now + lease_ms_ / 3;
  }
  if (*ours != had) {
    log(LogLevel::info, "coordinator", "context {}: {}", context_, *ours ? "we lead" : "another coordinator leads");
    newly_ = *ours;
  }
  leads_ = *ours;
  return {};
}

bool Leadership::newly() { return std::exchange(newly_, false); }

void Leadership::give_back(FlowStore& store) {
  if (!leads()) return;
  leads_ = false;
  if (auto done = store.stop_leading(context_, instance_); !done) {
    log(LogLevel::info, "coordinator", "context {}: not given back: {}", context_, done.error().message);
  }
}

}  // namespace mycojobs
