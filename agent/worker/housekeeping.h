// What any agent does for jobs and runners that nobody looks after: what time brings (Store::tick), leases that ran
// out, runners that went silent.
//
// The store's clock may jump. So a lease is expired, and a runner called lost, only when the store says that its time
// has passed AND this host has itself seen it unrenewed for a whole lease on its own monotonic clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "domain/lease_watch.h"
#include "mycojobs/clock.h"
#include "mycojobs/store_roles.h"
#include "worker/types.h"

namespace mycojobs {

// What it does to a store.
using HouseStore = RolesOf<LeaseStore, RunnerStore, RecordStore>;

class Housekeeping {
 public:
  Housekeeping(const Clock& clock, const WorkerSettings& settings);

  // Does what is due of the context, a bounded part of it. Answers how long until there is something to do again, in
  // ms: cheap to call sooner. Error: what was not done; the rest was, unless the store is away.
  Result<std::uint64_t> look_after(const HouseStore&, Id context);
  // Something may be due sooner than it was: look again, though not at once after the last time.
  void hurry();
  // The store was away: nothing that was seen before counts.
  void blind(Id context);

 private:
  struct Turns {  // on CLOCK_BOOTTIME
    std::uint64_t ticked = 0, next_tick = 0, next_leases = 0, next_runners = 0;
  };
  struct Silent {
    std::string instance;
    std::uint64_t since_boot_ms = 0;
  };
  Result<void> tick(LeaseStore&, Id context, Turns&);
  Result<void> expire_leases(const RolesOf<LeaseStore, RecordStore>&, Id context, Turns&);
  Result<void> mark_lost_runners(const RolesOf<RunnerStore, RecordStore>&, Id context, Turns&);

  const Clock& clock_;
  TickRequest request_;
  std::uint32_t lease_ms_;
  std::uint64_t every_ms_;  // between looks at leases
  std::map<Id, Turns> turns_;
  std::map<Id, LeaseWatch> leases_;
  std::map<std::pair<Id, Id>, Silent> silent_;  // runners whose time is over
};

}  // namespace mycojobs
