// Says once that a store went away and once that it is back, whichever thread notices, for each context.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

class StoreHealth {
 public:
  // context 0: all of them. What has been said within the last minute is not said again.
  void failed(Id context, std::string_view doing, const Error& error) {
    std::lock_guard lock(mutex_);
    State& state = states_[context];
    const auto now = std::chrono::steady_clock::now();
    state.away = true;
    if (state.said == error.message && now - state.said_at < std::chrono::minutes(1)) return;
    if (now - state.said_at < std::chrono::seconds(2))
      return;  // several threads meet the same failure in words of their own
    state.said = error.message;
    state.said_at = now;
    log(LogLevel::error, "store", "{}{}: {} (jobs under way go on; trying again)", where(context), doing,
        error.message);
  }
  void worked(Id context) {
    std::lock_guard lock(mutex_);
    State& state = states_[context];
    if (!state.away) return;
    state = {};
    log(LogLevel::info, "store", "{}answers again", where(context));
  }
  // Contexts whose calls failed lately; 0: all of them.
  std::vector<Id> away() {
    std::lock_guard lock(mutex_);
    std::vector<Id> contexts;
    for (const auto& [context, state] : states_) {
      if (state.away) contexts.push_back(context);
    }
    return contexts;
  }

 private:
  struct State {
    bool away = false;
    std::string said;
    std::chrono::steady_clock::time_point said_at{};
  };
  static std::string where(Id context) { return context == 0 ? "" : "context " + std::to_string(context) + ": "; }

  std::mutex mutex_;
  std::map<Id, State> states_;
};

// Pause before try number `tries` (1, 2, ...): 50 ms doubling to 400 ms, so that work goes on within a second of the
// store's return.
inline int retry_pause_ms(unsigned tries) { return tries > 3 ? 400 : 50 << (tries - 1); }

}  // namespace mycojobs
