// A rate limit for requests to /supervisor without a valid signature of a known peer. The server must parse such a
// request and check its signature before it can refuse it, and any client can send it. After a number of refusals of
// one network within a minute, its requests are refused before their bodies are read, until the minute is over. The
// number of networks with their own counter is limited, and the other networks share one counter. A network from which
// a known peer has called in the last hour (up to 1000 networks) keeps its own counter, so that requests of unknown
// peers from other networks cannot block it. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace mycojobs::api {

class PeerRateLimiter {
 public:
  PeerRateLimiter(const Clock& clock, std::uint32_t a_minute) : clock_(clock), a_minute_(a_minute) {}
  // network: see HttpRequest::network. Returns false if the limit is exceeded.
  bool check_limit(const std::string& network);
  void count_refusal(const std::string& network);       // counts a refused request
  void mark_known_network(const std::string& network);  // reports a request of a known peer

 private:
  struct Count {
    std::uint64_t until_ms = 0;  // end of the minute, in boot time
    std::uint32_t refused = 0;
  };
  // Returns the counter of a network, or the shared counter. REQUIRES: the lock is held.
  Count& count_of(const std::string& network);

  const Clock& clock_;
  const std::uint32_t a_minute_;
  std::mutex mutex_;
  std::map<std::string, Count> counts_;
  std::map<std::string, std::uint64_t> known_;  // by network: until when it keeps its own counter
  Count others_;                                // shared counter of the other networks
};

}  // namespace mycojobs::api
