// Says once that the store went away and once that it is back, whichever thread notices.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/log.h"
#include "mycojobs/result.h"

namespace mycojobs {

class StoreHealth {
 public:
  void failed(std::string_view who, const Error& error) {
    if (!away_.exchange(true))
      log(LogLevel::error, "store", "{}: {} (jobs under way go on; trying again)", who, error.message);
  }
  void worked() {
    if (away_.load(std::memory_order_relaxed) && away_.exchange(false)) log(LogLevel::info, "store", "answers again");
  }
  bool away() const { return away_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> away_{false};
};

// Pause before try number `tries` (1, 2, ...): 50 ms doubling to 1 s, so that work goes on within a second of the
// store's return.
inline int retry_pause_ms(unsigned tries) { return tries > 5 ? 1000 : 50 << (tries - 1); }

}  // namespace mycojobs
