// A rate limit for requests to /supervisor without a valid signature of a known peer. The server must parse such a
// request and check its signature before it can refuse it, and any client can send it. If a network exceeds the number
// of refusals in a minute, its requests are refused before their bodies are read, until the minute ends. The number of
// networks with a separate counter is limited; all other networks share one counter. Networks from which a known peer
// has called in the last hour (at most 1000 networks) always have a separate counter, so that unknown peers in other
// networks cannot block them. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace mycojobs::api {

class PeerRateLimiter {
 public:
  PeerRateLimiter(const Clock& clock, std::uint32_t max_per_minute) : clock_(clock), max_per_minute_(max_per_minute) {}
  // network: see HttpRequest::network. Returns false if the limit is exceeded.
  bool is_below_limit(const std::string& network);
  void count_refusal(const std::string& network);       // counts a refused request
  void mark_known_network(const std::string& network);  // reports a request of a known peer

 private:
  struct Counter {
    std::uint64_t until_ms = 0;  // end of the minute, in boot time
    std::uint32_t refusals = 0;
  };
  // Returns the counter of a network, or the shared counter. REQUIRES: the lock is held.
  Counter& find_counter(const std::string& network);

  const Clock& clock_;
  const std::uint32_t max_per_minute_;
  std::mutex mutex_;
  std::map<std::string, Counter> counters_;
  std::map<std::string, std::uint64_t> known_until_ms_;  // by network: end of its separate counter, in boot time
  Counter shared_counter_;                               // shared counter of the other networks
};

}  // namespace mycojobs::api
