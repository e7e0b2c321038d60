// Support for the agent's threads while a store is unavailable: they log the failure once, pause, and retry.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// Returns the pause after this number of failed attempts (1, 2, ...): 50 ms doubling to 400 ms, so that work continues
// within a second after the store is available again.
inline int retry_pause_ms(unsigned failures) { return failures > 3 ? 400 : 50 << (failures - 1); }

// Logs once per context that its store is unavailable and once that it is available again. Thread-safe.
class StoreHealth {
 public:
  // Context 0 means all contexts. The same error is logged at most once a minute.
  void on_failure(Id context, std::string_view operation, const Error& error);
  void on_success(Id context);
  // Returns the contexts with a failed last call; 0 means all contexts.
  std::vector<Id> unavailable_contexts();

 private:
  struct State {
    bool is_unreachable = false;
    std::string logged;
    std::chrono::steady_clock::time_point logged_at{};
  };

  std::mutex mutex_;
  std::map<Id, State> states_;
};

// Returns a reason for not being ready, such as "Redis is unavailable for context 1 2", or an empty text without
// contexts. Context 0 means all contexts: "Redis is unavailable".
std::string describe_unavailable_contexts(const std::vector<Id>&);

// Pauses of retries for each context. The pause grows with each failure. Not thread-safe.
class ContextPauses {
 public:
  explicit ContextPauses(const Clock& clock) : clock_(clock) {}

  std::uint64_t remaining_ms(Id context) const;  // Returns the remaining pause; 0 means that a call may be made.
  bool can_try(Id context) const { return remaining_ms(context) == 0; }
  // Returns the shortest remaining pause, or `max` if no context is paused.
  std::uint64_t min_remaining_ms(std::uint64_t max) const;

  void on_success(Id context) { pauses_.erase(context); }
  void on_failure(Id context);

 private:
  struct Pause {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };

  const Clock& clock_;
  std::map<Id, Pause> pauses_;
};

// Logs the first error of a series of failures of a thread of a context. After a success the next error is logged
// again. Not thread-safe.
class LogOnce {
 public:
  LogOnce(std::string_view component, Id context) : component_(component), context_(context) {}
  // Reports the result of an attempt; null reports a success.
  void operator()(const Error* error) {
    if (error != nullptr && !failing_) log(LogLevel::warn, component_, "context {}: {}", context_, error->message);
    failing_ = error != nullptr;
  }

 private:
  std::string_view component_;
  Id context_;
  bool failing_ = false;
};

}  // namespace mycojobs
