#include "coordinator/leadership.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mycojobs {
namespace {

// Maximum interval at which a coordinator that does not lead tries to acquire the leadership.
constexpr std::uint64_t kMaxAcquireIntervalMs = 500;

}  // namespace

Leadership::Leadership(const Clock& clock, Id context, std::string instance, std::string location,
                       std::uint32_t lease_ms)
    : clock_(clock),
      context_(context),
      instance_(std::move(instance)),
      location_(std::move(location)),
      lease_ms_(lease_ms) {}

Result<void> Leadership::renew(FlowStore& store) {
  const std::uint64_t now = clock_.boot_ms();
  const bool was_leader = is_leader();
  if (!was_leader && is_leader_) {
    log(LogLevel::warn, "coordinator",
        "context {}: lost leadership: the process was stopped or the store was unavailable for a whole lease",
        context_);
    is_leader_ = false;
    next_renewal_boot_ms_ = now;
  }
  if (now < next_renewal_boot_ms_) return {};
  auto acquired = store.acquire_leadership(context_, instance_, location_, lease_ms_);
  if (!acquired) return tl::unexpected<Error>(std::move(acquired).error());  // The next round tries again.
  next_renewal_boot_ms_ = clock_.boot_ms() + std::min<std::uint64_t>(lease_ms_ / 4, kMaxAcquireIntervalMs);
  if (*acquired) {
    // The lease starts before the request is sent, so that the local end of the lease is not later than the one in the
    // store.
    lease_end_boot_ms_ = now + lease_ms_;
    next_renewal_boot_ms_ = now + lease_ms_ / 3;
  }
  if (*acquired != was_leader) {
    log(LogLevel::info, "coordinator", "context {}: {}", context_,
        *acquired ? "acquired leadership" : "another coordinator is the leader");
    was_acquired_ = *acquired;
  }
  is_leader_ = *acquired;
  return {};
}

bool Leadership::pop_acquired() { return std::exchange(was_acquired_, false); }

void Leadership::release(FlowStore& store) {
  if (!is_leader()) return;
  is_leader_ = false;
  if (auto released = store.release_leadership(context_, instance_); !released) {
    log(LogLevel::info, "coordinator", "context {}: leadership was not released: {}", context_,
        released.error().message);
  }
}

}  // namespace mycojobs
