#include "api/auth/peer_rate_limiter.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMaxNetworks = 1000, kMaxKnown = 1000;
constexpr std::uint64_t kMinuteMs = 60000, kKnownMs = 3'600'000;

}  // namespace

PeerRateLimiter::Count& PeerRateLimiter::count_of(const std::string& network) {
  const auto found = counts_.find(network);
  return found == counts_.end() ? others_ : found->second;
}

bool PeerRateLimiter::check_limit(const std::string& network) {
  const std::lock_guard lock(mutex_);
  if (!counts_.contains(network) && (counts_.size() < kMaxNetworks || known_.contains(network))) return true;
  const Count& count = count_of(network);
  return count.refused < a_minute_ || clock_.boot_ms() >= count.until_ms;
}

void PeerRateLimiter::count_refusal(const std::string& network) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = clock_.boot_ms();
  if (!counts_.contains(network) && counts_.size() >= kMaxNetworks)
    std::erase_if(counts_, [now](const auto& each) { return each.second.until_ms <= now; });
  if (counts_.size() < kMaxNetworks || known_.contains(network)) counts_.try_emplace(network);
  Count& count = count_of(network);
  if (now >= count.until_ms) count = {now + kMinuteMs, 0};
  ++count.refused;
}

void PeerRateLimiter::mark_known_network(const std::string& network) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = clock_.boot_ms();
  if (known_.size() >= kMaxKnown && !known_.contains(network))
    std::erase_if(known_, [now](const auto& each) { return each.second <= now; });
  if (known_.size() < kMaxKnown || known_.contains(network)) known_[network] = now + kKnownMs;
}

}  // namespace mycojobs::api
