// What the agent's threads do while a store is away: say so once, pause, and try again.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// Pause before try number `tries` (1, 2, ...): 50 ms doubling to 400 ms, so that work goes on within a second of the
// store's return.
inline int retry_pause_ms(unsigned tries) { return tries > 3 ? 400 : 50 << (tries - 1); }

// Says once that a store went away and once that it is back, whichever thread notices, for each context.
class StoreHealth {
 public:
  // context 0: all of them. What was logged within the last minute is not logged again.
  void failed(Id context, std::string_view doing, const Error& error);
  void worked(Id context);
  // Contexts whose calls failed lately; 0: all of them.
  std::vector<Id> away();

 private:
  struct State {
    bool away = false;
    std::string logged;
    std::chrono::steady_clock::time_point logged_at{};
  };

  std::mutex mutex_;
  std::map<Id, State> states_;
};

// When a context whose store has failed may be tried again: a short pause, which grows with each failure. Owned by one
// thread.
class ContextPauses {
 public:
  explicit ContextPauses(const Clock& clock) : clock_(clock) {}

  std::uint64_t left_ms(Id context) const;  // 0: now
  bool may_try(Id context) const { return left_ms(context) == 0; }
  // The least of those that are paused; `most` if none is.
  std::uint64_t least_left_ms(std::uint64_t most) const;

  void worked(Id context) { pauses_.erase(context); }
  void failed(Id context);

 private:
  struct Pause {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };

  const Clock& clock_;
  std::map<Id, Pause> pauses_;
};

}  // namespace mycojobs
