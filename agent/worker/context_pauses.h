// When a context whose store has failed may be tried again. Its own pause grows with each failure and is short. Where
// there are several servers, one that was slow to fail also waits as long again, so that the time which it takes is not
// taken from the contexts of the others; the first answer of that server, to whichever thread, ends this wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/records.h"
#include "worker/store_health.h"

namespace mycojobs {

// Which contexts share a server, and how often each server has answered. Safe to share between threads.
class StoreServers {
 public:
  // own: those of the contexts that have a server of their own.
  StoreServers(const std::vector<Id>& contexts, const std::vector<Id>& own) : own_(own.begin(), own.end()) {
    std::set<Id> all;
    for (Id context : contexts) all.insert(of(context));
    several_ = all.size() > 1;
  }
  Id of(Id context) const { return own_.contains(context) ? context : 0; }
  bool several() const { return several_; }

  void answered(Id server) {
    std::lock_guard lock(mutex_);
    ++answers_[server];
  }
  std::uint64_t answers(Id server) const {
    std::lock_guard lock(mutex_);
    const auto found = answers_.find(server);
    return found == answers_.end() ? 0 : found->second;
  }

 private:
  const std::set<Id> own_;
  bool several_ = false;
  mutable std::mutex mutex_;
  std::map<Id, std::uint64_t> answers_;
};

// Owned by one thread.
class ContextPauses {
 public:
  ContextPauses(const Clock& clock, StoreServers& servers) : clock_(clock), servers_(servers) {}

  // How long until the context may be tried, or until it is worth another look whether it may; 0: now.
  std::uint64_t left_ms(Id context) const {
    const std::uint64_t now = clock_.boot_ms();
    const auto own = pauses_.find(context);
    std::uint64_t left = own == pauses_.end() ? 0 : left_of(own->second.until_boot_ms, now);
    const Id server = servers_.of(context);
    const auto slow = slow_.find(server);
    if (slow != slow_.end() && slow->second.answers == servers_.answers(server))
      left = std::max(left, std::min(left_of(slow->second.until_boot_ms, now), kLookMs));
    return left;
  }
  bool may_try(Id context) const { return left_ms(context) == 0; }
  // The least of those that are paused; `most` if none is.
  std::uint64_t least_left_ms(std::uint64_t most) const {
    for (const auto& [context, pause] : pauses_) most = std::min(most, left_ms(context));
    return most;
  }

  void worked(Id context) {
    pauses_.erase(context);
    slow_.erase(servers_.of(context));
    servers_.answered(servers_.of(context));
  }
  void failed(Id context, std::uint64_t began_boot_ms) {
    const std::uint64_t now = clock_.boot_ms();
    Pause& pause = pauses_[context];
    pause.until_boot_ms = now + static_cast<std::uint64_t>(retry_pause_ms(++pause.failures));
    if (!servers_.several()) return;
    const Id server = servers_.of(context);
    slow_[server] = {pause.until_boot_ms + now - std::min(began_boot_ms, now), servers_.answers(server)};
  }

 private:
  static constexpr std::uint64_t kLookMs = 200;
  struct Pause {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  struct Slow {
    std::uint64_t until_boot_ms = 0, answers = 0;
  };
  static std::uint64_t left_of(std::uint64_t until, std::uint64_t now) { return until > now ? until - now : 0; }

  const Clock& clock_;
  StoreServers& servers_;
  std::map<Id, Pause> pauses_;  // by context
  std::map<Id, Slow> slow_;     // by server
};

}  // namespace mycojobs
