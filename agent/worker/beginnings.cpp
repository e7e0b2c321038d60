#include "worker/beginnings.h"

namespace mycojobs {

void Beginnings::asked_for(const std::string& lane, std::uint64_t now_boot_ms) {
  Lane& asked = lanes_[lane];
  if (asked.waiting++ == 0) asked.since_boot_ms = now_boot_ms;
}

void Beginnings::answered(const std::string& lane, std::uint64_t now_boot_ms) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  found->second.since_boot_ms = now_boot_ms;
  if (--found->second.waiting == 0) lanes_.erase(found);
}

bool Beginnings::hangs(std::string_view lane, std::uint64_t now_boot_ms) const {
  const auto found = lanes_.find(lane);
  return found != lanes_.end() && now_boot_ms - found->second.since_boot_ms >= kPatienceMs;
}

}  // namespace mycojobs
