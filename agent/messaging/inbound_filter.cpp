#include "messaging/inbound_filter.h"

#include <string>

namespace mycojobs {
namespace {

constexpr std::uint64_t kContextScanIntervalMs = 5000, kMinuteMs = 60000;
constexpr std::uint32_t kMaxKnownPeerNotes = 20, kMaxUnknownPeerNotes = 1;  // journal entries per minute

}  // namespace

Result<void> InboundMessageFilter::check(Store& store, Id context) {
  {
    const std::lock_guard lock(mutex_);
    if (contexts_.contains(context)) return {};
    const std::uint64_t now = clock_.boot_ms();
    if (serves_all_contexts_ && has_scanned_ && now < last_scan_ms_ + kContextScanIntervalMs)
      return fail(Code::unavailable,
                  "context: " + std::to_string(context) + " is not known here; try again in a few seconds");
    has_scanned_ = true;
    last_scan_ms_ = now;
  }
  if (serves_all_contexts_) {
    const auto found = store.find_contexts();
    if (!found) return fail(Code::unavailable, "context: " + found.error().message);
    const std::lock_guard lock(mutex_);
    contexts_.insert(found->begin(), found->end());
    if (contexts_.contains(context)) return {};
  }
  return fail(Code::denied, "context: " + std::to_string(context) + " does not accept messages on this host");
}

std::uint64_t InboundMessageFilter::record_refusal(Id context, bool is_known_peer) {
  const std::lock_guard lock(mutex_);
  RefusalCount& count = refusals_[{context, is_known_peer}];
  const std::uint64_t now = clock_.boot_ms();
  if (now >= count.minute_start_ms + kMinuteMs) {
    count.minute_start_ms = now;
    count.notes = 0;
  }
  ++count.unreported_refusals;
  if (count.notes >= (is_known_peer ? kMaxKnownPeerNotes : kMaxUnknownPeerNotes)) return 0;
  ++count.notes;
  return std::exchange(count.unreported_refusals, 0);
}

}  // namespace mycojobs
