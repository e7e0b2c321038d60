// Registers the runner (registration.h) in the contexts of one server of the store, and gives back what its former
// instances have claimed there. Takes turns (base/turns.h) where the server is away when the agent starts: until it is
// back and has let the runner in, nothing is taken from it. The last turn stops it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/turns.h"
#include "mycojobs/clock.h"
#include "mycojobs/store_roles.h"
#include "worker/registration.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Registrar : public TurnTaker {
 public:
  struct Callbacks {
    // In a turn: and the jobs are given back. Error: its threads cannot be started; it is called again later.
    std::function<Result<void>()> registered;
    // The same: another instance holds our id, or the record has a key that we do not hold.
    std::function<void(const std::string&)> runner_lost;
  };
  using Stores = RolesOf<RunnerStore, RecordStore, LeaseStore>;
  // server_of: the one context that the server is for; 0: several have it. settings: of its contexts.
  Registrar(Stores, const Clock&, StoreHealth&, const WorkerSettings&, RunnerHold, FormerInstances&, Id server_of,
            Callbacks);

  Result<void> enter();  // in all contexts; may be repeated. Error: conflict, unavailable, denied, ...
  // Once it has entered. More than 0: to be called again after so many ms; helpers of a dead agent are waited for.
  std::uint64_t give_back();
  std::uint64_t turn();                            // both, and says so. Until the next one, ms
  bool registered() const { return registered_; }  // any thread
  // By context; once it is registered, any thread.
  const std::map<Id, RegisteredRunner>& runners() const { return runners_; }
  // When no turn comes any more: frees the id where it is ours. Says that the runner has stopped, unless it was lost.
  void sign_off(bool runner_lost);

 private:
  Stores store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  RunnerHold self_;
  FormerInstances& former_;
  Id server_of_;
  Callbacks callbacks_;
  std::set<Id> entered_;  // contexts; where a call was not answered, the id is free after a lease
  std::map<Id, RegisteredRunner> runners_;
  std::atomic<bool> registered_{false};
  unsigned failures_ = 0;  // one after the other
};

}  // namespace mycojobs
