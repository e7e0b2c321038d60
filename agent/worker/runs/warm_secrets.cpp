#include "worker/runs/warm_secrets.h"

#include <algorithm>

namespace mycojobs {
namespace {

constexpr std::uint64_t kEndMarginMs = 60000;  // margin for the start of a run and for the end of a process

}  // namespace

void WarmSecrets::on_run_started(const RunSpec& spec, const std::vector<Secret>& secrets, std::uint64_t now_boot_ms) {
  if (keys_.empty()) checked_boot_ms_ = now_boot_ms;
  Key& key = keys_[spec.warm.key];
  key = {spec.context, secrets,
         std::max(key.until_boot_ms, now_boot_ms + spec.limits.wall_ms + spec.warm.idle_ms + kEndMarginMs)};
  if (keys_.size() <= kMaxKeys) return;
  keys_.erase(std::min_element(keys_.begin(), keys_.end(), [](const auto& a, const auto& b) {
    return a.second.until_boot_ms < b.second.until_boot_ms;
  }));
}

std::vector<std::string> WarmSecrets::list_outdated_keys(const IsCurrent& is_current, std::uint64_t now_boot_ms) {
  std::vector<std::string> keys;
  if (keys_.empty() || now_boot_ms < checked_boot_ms_ + kCheckIntervalMs) return keys;
  checked_boot_ms_ = now_boot_ms;
  std::erase_if(keys_, [&](const auto& entry) { return entry.second.until_boot_ms <= now_boot_ms; });
  for (const auto& [name, key] : keys_) {
    if (!is_current(key.context, key.secrets)) keys.push_back(name);
  }
  return keys;
}

}  // namespace mycojobs
