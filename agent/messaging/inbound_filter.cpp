#include "messaging/inbound_filter.h"

#include <string>

namespace mycojobs {
namespace {

constexpr std::uint64_t kGateCheckMs = 5000, kMinuteMs = 60000;
constexpr std::uint32_t kNotesOfKnown = 20,
                        kUnknownPeerNotes = 1;  // journal entries per minute, known and unknown peers

}  // namespace

Result<void> InboundMessageFilter::check(Store& store, Id context) {
  {
    const std::lock_guard lock(mutex_);
    if (contexts_.contains(context)) return {};
    const std::uint64_t now = clock_.boot_ms();
    if (all_ && has_checked_ && now < checked_ms_ + kGateCheckMs)
      return fail(Code::unavailable,
                  "context: " + std::to_string(context) + " is not known here; try again in a few seconds");
    has_checked_ = true;
    checked_ms_ = now;
  }
  if (all_) {
    auto facts = store.facts();
    if (!facts) return fail(Code::unavailable, "context: " + facts.error().message);
    const std::lock_guard lock(mutex_);
    contexts_.insert(facts->used.begin(), facts->used.end());
    if (contexts_.contains(context)) return {};
  }
  return fail(Code::denied, "context: " + std::to_string(context) + " does not accept messages on this host");
}

std::uint64_t InboundMessageFilter::refused(Id context, bool by_known) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[{context, by_known}];
  const std::uint64_t now = clock_.boot_ms();
  if (now >= count.since_ms + kMinuteMs) {
    count.since_ms = now;
    count.noted = 0;
  }
  ++count.unnoted;
  if (count.noted >= (by_known ? kNotesOfKnown : kUnknownPeerNotes)) return 0;
  ++count.noted;
  return std::exchange(count.unnoted, 0);
}

}  // namespace mycojobs
