// The periodic work on a context that any agent can do: due timers and retention (Store::tick), expired leases, and
// runners that have stopped sending heartbeats. Not thread-safe.
//
// The clock of the store can jump. Therefore a lease is expired, and a runner marked as lost, only if the store reports
// that its time is over AND this host has not seen a renewal for a whole lease on its own monotonic clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "jobs/lease_observer.h"
#include "store/store.h"
#include "worker/worker_types.h"

namespace mycojobs {

class Maintenance {
 public:
  using OnPrerequisites = std::function<void(Id context)>;  // jobs of the context wait for prerequisites
  Maintenance(
      const Clock& clock, const WorkerSettings& settings, OnPrerequisites on_prerequisites = [](Id) {});

  // Does the due work of the context, in bounded batches. Returns the time in ms until more work is due; an earlier
  // call is cheap. An error means that a part of the work failed; the other parts were done unless the store is
  // unavailable.
  Result<std::uint64_t> run_due_work(Store&, Id context);
  // Shortens the interval of ticks for a few seconds, since timers may be set soon. Contexts without activity, delayed
  // jobs and leases are checked less often.
  void on_activity(Id context);
  // Requests a tick with the next call, since work may be due earlier than expected. A short minimum interval applies.
  void request_early_tick(Id context);
  // Discards the observations of leases and runners, which are outdated after the store was unavailable.
  void clear_observations(Id context);

 private:
  struct NextTimes {  // times on CLOCK_BOOTTIME
    std::uint64_t last_tick = 0, next_tick = 0, next_leases = 0, next_runners = 0;
    std::uint64_t last_look = 0;  // the last tick, or the last time at which the context was found to need none
    std::uint64_t active_until = 0;
    std::uint64_t live_runners = 0;  // number of runners of the context with heartbeats
    bool has_leases = false;         // whether the last look has seen leases
    bool can_skip_ticks = false;     // whether a tick is preceded by a look for work
  };
  struct SilentRunner {
    std::string instance;
    std::uint64_t since_boot_ms = 0;
  };
  std::uint64_t get_tick_interval_ms(const NextTimes&, std::uint64_t now) const;
  Result<void> tick(LeaseStore&, Id context, NextTimes&);
  static bool is_search_due(const NextTimes&, const TimedWork&, std::uint64_t now);
  Result<void> skip_needless_ticks(LeaseStore&, Id context, std::uint64_t now);
  Result<void> expire_leases(Store&, Id context, NextTimes&);
  Result<void> mark_lost_runners(Store&, Id context, NextTimes&);

  const Clock& clock_;
  OnPrerequisites on_prerequisites_;
  TickRequest request_;
  std::uint32_t lease_ms_;
  std::uint64_t lease_check_interval_ms_;  // interval of the checks of leases
  std::map<Id, NextTimes> next_times_;
  std::map<Id, LeaseObserver> leases_;
  // Runners that did not renew their hold in time, by context and runner.
  std::map<std::pair<Id, Id>, SilentRunner> silent_runners_;
};

}  // namespace mycojobs
