#include "worker/runs/warm_secrets.h"

#include <algorithm>

namespace mycojobs {
namespace {

constexpr std::uint64_t kToEndMs = 60000;  // for the start of a run, and for the end of a process

}  // namespace

void WarmSecrets::on_run_started(const RunSpec& spec, const std::vector<Secret>& secrets, std::uint64_t now_boot_ms) {
  if (keys_.empty()) checked_boot_ms_ = now_boot_ms;
  Key& key = keys_[spec.warm.key];
  key = {spec.context, secrets,
         std::max(key.until_boot_ms, now_boot_ms + spec.limits.wall_ms + spec.warm.idle_ms + kToEndMs)};
  if (keys_.size() <= kMaxKeys) return;
  keys_.erase(std::min_element(keys_.begin(), keys_.end(), [](const auto& a, const auto& b) {
    return a.second.until_boot_ms < b.second.until_boot_ms;
  }));
}

std::vector<std::string> WarmSecrets::outdated(const IsCurrent& has, std::uint64_t now_boot_ms) {
  std::vector<std::string> out;
  if (keys_.empty() || now_boot_ms < checked_boot_ms_ + kCheckMs) return out;
  checked_boot_ms_ = now_boot_ms;
  std::erase_if(keys_, [&](const auto& each) { return each.second.until_boot_ms <= now_boot_ms; });
  for (const auto& [name, key] : keys_) {
    if (!has(key.context, key.secrets)) out.push_back(name);
  }
  return out;
}

}  // namespace mycojobs
