#include "api/auth/peer_rate_limiter.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMaxNetworks = 1000, kMaxKnownNetworks = 1000;
constexpr std::uint64_t kWindowMs = 60000, kKnownTtlMs = 3'600'000;

}  // namespace

PeerRateLimiter::Counter& PeerRateLimiter::find_counter(const std::string& network) {
  const auto it = counters_.find(network);
  return it == counters_.end() ? shared_counter_ : it->second;
}

bool PeerRateLimiter::is_below_limit(const std::string& network) {
  const std::lock_guard lock(mutex_);
  if (!counters_.contains(network) && (counters_.size() < kMaxNetworks || known_until_ms_.contains(network)))
    return true;
  const Counter& counter = find_counter(network);
  return counter.refusals < max_per_minute_ || clock_.boot_ms() >= counter.until_ms;
}

void PeerRateLimiter::count_refusal(const std::string& network) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = clock_.boot_ms();
  if (!counters_.contains(network) && counters_.size() >= kMaxNetworks)
    std::erase_if(counters_, [now](const auto& entry) { return entry.second.until_ms <= now; });
  if (counters_.size() < kMaxNetworks || known_until_ms_.contains(network)) counters_.try_emplace(network);
  Counter& counter = find_counter(network);
  if (now >= counter.until_ms) counter = {now + kWindowMs, 0};
  ++counter.refusals;
}

void PeerRateLimiter::mark_known_network(const std::string& network) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = clock_.boot_ms();
  if (known_until_ms_.size() >= kMaxKnownNetworks && !known_until_ms_.contains(network))
    std::erase_if(known_until_ms_, [now](const auto& entry) { return entry.second <= now; });
  if (known_until_ms_.size() < kMaxKnownNetworks || known_until_ms_.contains(network))
    known_until_ms_[network] = now + kKnownTtlMs;
}

}  // namespace mycojobs::api
