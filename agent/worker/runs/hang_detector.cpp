#include "worker/runs/hang_detector.h"

namespace mycojobs {

void HangDetector::request_sent(const std::string& strand, std::uint64_t now_boot_ms) {
  StrandState& asked = strands_[strand];
  if (asked.waiting++ == 0) asked.since_boot_ms = now_boot_ms;
}

void HangDetector::request_answered(const std::string& strand, std::uint64_t now_boot_ms) {
  const auto found = strands_.find(strand);
  if (found == strands_.end()) return;
  found->second.since_boot_ms = now_boot_ms;
  if (--found->second.waiting == 0) strands_.erase(found);
}

bool HangDetector::hangs(std::string_view strand, std::uint64_t now_boot_ms) const {
  const auto found = strands_.find(strand);
  return found != strands_.end() && now_boot_ms - found->second.since_boot_ms >= kTimeoutMs;
}

}  // namespace mycojobs
