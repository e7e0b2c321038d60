// Keeps the agent's promises alive: renews the leases of all claims and holds the runner's id, with a store connection
// of its own, so that neither a slow job nor a flood of output delays a heartbeat. Takes turns (base/turns.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/live_value.h"
#include "base/turns.h"
#include "mycojobs/clock.h"
#include "mycojobs/store_roles.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class LeaseKeeper : public TurnTaker {
 public:
  struct Callbacks {
    std::function<void(RunNumber, std::uint64_t fence_boot_ms)> renewed;
    std::function<void(RunNumber)> stale;      // the claim is gone: the run must die
    std::function<void(RunNumber)> cancelled;  // somebody wants the job cancelled
    // Another instance holds our id, or the record has a key that we do not hold.
    std::function<void(const std::string&)> runner_lost;
    std::function<std::string()> why_not_ready = [] { return std::string(); };  // empty: it takes jobs
  };
  LeaseKeeper(RolesOf<ClaimStore, RunnerStore>, const Clock&, StoreHealth&, WorkerSettings, RunnerHold, Callbacks);
  void add(RunNumber, const ClaimRef&);                    // any thread
  void remove(std::span<const RunNumber>);                 // any thread
  std::map<Id, std::size_t> held();                        // any thread: how many, by context
  void beat_now() { wake(); }                              // any thread: do not wait for the next heartbeat
  void replace_ceilings(std::shared_ptr<const Ceilings>);  // any thread: that the runner's record shows

  std::uint64_t turn();  // a heartbeat. Until the next one, ms

 private:
  bool renew_context(Id context);  // false: the store is away
  bool hold_runner(Id context);    // false: the store is away

  RolesOf<ClaimStore, RunnerStore> store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  RunnerHold hold_;
  Callbacks callbacks_;
  ContextPauses pauses_;
  LiveValue<Ceilings> ceilings_;
  std::mutex mutex_;
  std::map<Id, std::map<RunNumber, ClaimRef>> claims_;  // by context
  unsigned failures_ = 0;                               // one after the other
};

}  // namespace mycojobs
