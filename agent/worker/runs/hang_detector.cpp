#include "worker/runs/hang_detector.h"

namespace mycojobs {

void HangDetector::on_request_sent(const std::string& strand, std::uint64_t now_boot_ms) {
  StrandState& state = strands_[strand];
  if (state.waiting_requests++ == 0) state.since_boot_ms = now_boot_ms;
}

void HangDetector::on_request_answered(const std::string& strand, std::uint64_t now_boot_ms) {
  const auto entry = strands_.find(strand);
  if (entry == strands_.end()) return;
  entry->second.since_boot_ms = now_boot_ms;
  if (--entry->second.waiting_requests == 0) strands_.erase(entry);
}

bool HangDetector::is_hanging(std::string_view strand, std::uint64_t now_boot_ms) const {
  const auto entry = strands_.find(strand);
  return entry != strands_.end() && now_boot_ms - entry->second.since_boot_ms >= kTimeoutMs;
}

}  // namespace mycojobs
