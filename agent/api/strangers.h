// How many requests of a network /supervisor has refused that held no signature of somebody known here. Each costs a
// parse and the check of a signature, and anybody may send them: after so many within a minute the rest are refused by
// their heads, until the minute is over. Networks that somebody known has called from are counted alone, however
// many strangers there are; after an hour others may have their place. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "mycojobs/clock.h"

namespace mycojobs::api {

class Strangers {
 public:
  Strangers(const Clock& clock, std::uint32_t a_minute) : clock_(clock), a_minute_(a_minute) {}
  // network: HttpRequest::network.
  bool admits(const std::string& network);
  void refused(const std::string& network);
  void known(const std::string& network);  // a request from there was signed by somebody known

 private:
  struct Count {
    std::uint64_t until_ms = 0;
    std::uint32_t refused = 0;
  };
  // With the lock held; of networks that are too many to be counted apart: one for all of them.
  Count& count_of(const std::string& network);

  const Clock& clock_;
  const std::uint32_t a_minute_;
  std::mutex mutex_;
  std::map<std::string, Count> counts_;
  std::map<std::string, std::uint64_t> known_;  // until then they keep their place
  Count others_;
};

}  // namespace mycojobs::api
