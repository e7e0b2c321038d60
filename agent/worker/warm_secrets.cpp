#include "worker/warm_secrets.h"

#include <algorithm>

namespace mycojobs {
namespace {

constexpr std::uint64_t kToEndMs = 60000;  // for a run to begin, and for a process to go

bool are_those_of_now(Secrets& secrets, Id context, const std::vector<SecretValue>& given) {
  std::vector<std::string> names;
  for (const SecretValue& each : given) names.push_back(each.name);
  const auto now = secrets.values(context, names);
  return now && std::equal(now->begin(), now->end(), given.begin(), given.end(),
                           [](const auto& a, const auto& b) { return a.name == b.name && a.value == b.value; });
}

}  // namespace

void WarmSecrets::given(const RunSpec& spec, const std::vector<SecretValue>& secrets, std::uint64_t now_boot_ms) {
  if (keys_.empty()) looked_boot_ms_ = now_boot_ms;
  Key& key = keys_[spec.warm.key];
  key = {spec.context, secrets,
         std::max(key.until_boot_ms, now_boot_ms + spec.limits.wall_ms + spec.warm.idle_ms + kToEndMs)};
  if (keys_.size() <= kMost) return;
  keys_.erase(std::min_element(keys_.begin(), keys_.end(), [](const auto& a, const auto& b) {
    return a.second.until_boot_ms < b.second.until_boot_ms;
  }));
}

std::optional<WarmSecrets::Look> WarmSecrets::next(std::uint64_t now_boot_ms) {
  if (looking_ || keys_.empty() || now_boot_ms < looked_boot_ms_ + kLookMs) return std::nullopt;
  looked_boot_ms_ = now_boot_ms;
  std::erase_if(keys_, [&](const auto& each) { return each.second.until_boot_ms <= now_boot_ms; });
  if (keys_.empty()) return std::nullopt;
  looking_ = true;
  return [keys = keys_](Secrets& secrets) {
    std::vector<std::string> out;
    for (const auto& [name, key] : keys) {
      if (!are_those_of_now(secrets, key.context, key.secrets)) out.push_back(name);
    }
    return out;
  };
}

}  // namespace mycojobs
