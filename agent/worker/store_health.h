// What the agent's threads do while a store is away: say so once, pause, and try again.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
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
  // context 0: all of them. What has been said within the last minute is not said again.
  void failed(Id context, std::string_view doing, const Error& error);
  void worked(Id context);
  // Contexts whose calls failed lately; 0: all of them.
  std::vector<Id> away();

 private:
  struct State {
    bool away = false;
    std::string said;
    std::chrono::steady_clock::time_point said_at{};
  };

  std::mutex mutex_;
  std::map<Id, State> states_;
};

// Which contexts share a server, and how often each server has answered. Safe to share between threads.
class StoreServers {
 public:
  // own: those of the contexts that have a server of their own.
  StoreServers(const std::vector<Id>& contexts, const std::vector<Id>& own);
  Id of(Id context) const { return own_.contains(context) ? context : 0; }
  bool several() const { return several_; }

  void answered(Id server);
  std::uint64_t answers(Id server) const;

 private:
  const std::set<Id> own_;
  bool several_ = false;
  mutable std::mutex mutex_;
  std::map<Id, std::uint64_t> answers_;
};

// When a context whose store has failed may be tried again. Its own pause grows with each failure and is short. Where
// there are several servers, one that was slow to fail also waits as long again, so that the time which it takes is not
// taken from the contexts of the others; the first answer of that server, to whichever thread, ends this wait.
// Owned by one thread.
class ContextPauses {
 public:
  ContextPauses(const Clock& clock, StoreServers& servers) : clock_(clock), servers_(servers) {}

  // How long until the context may be tried, or until it is worth another look whether it may; 0: now.
  std::uint64_t left_ms(Id context) const;
  bool may_try(Id context) const { return left_ms(context) == 0; }
  // The least of those that are paused; `most` if none is.
  std::uint64_t least_left_ms(std::uint64_t most) const;

  void worked(Id context);
  void failed(Id context, std::uint64_t began_boot_ms);

 private:
  struct Pause {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  struct Slow {
    std::uint64_t until_boot_ms = 0, answers = 0;
  };

  const Clock& clock_;
  StoreServers& servers_;
  std::map<Id, Pause> pauses_;  // by context
  std::map<Id, Slow> slow_;     // by server
};

}  // namespace mycojobs
