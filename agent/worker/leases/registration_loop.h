// Registers the runner (runner_registration.h) in the contexts of one Redis server, and releases the jobs that its
// former instances have claimed there. If the server is unavailable when the agent starts, the registrar runs as a loop
// of base/loop_thread.h until the runner is registered; no job is claimed from the server before.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/loop_thread.h"
#include "store/store_health.h"
#include "store/store_roles.h"
#include "worker/leases/runner_registration.h"
#include "worker/worker_types.h"

namespace mycojobs {

class Registrar : public TimedLoop {
 public:
  struct Callbacks {
    // Called from run_once() after the registration and the release of jobs. Error: threads could not be started; it is
    // called again later.
    std::function<Result<void>()> registered;
    // Called from run_once() if another instance holds the runner id, or the record has a public key that this agent
    // does not have.
    std::function<void(const std::string&)> runner_lost;
  };
  using Stores = StoreRoles<RunnerStore, RecordStore, LeaseStore>;
  // server_of: the only context of the server; 0: several contexts share it. settings: restricted to these contexts.
  Registrar(Stores, const Clock&, StoreHealth&, const WorkerSettings&, RunnerHolder, PreviousInstances&, Id server_of,
            Callbacks);

  Result<void> enter();  // Registers in all contexts; may be repeated. Errors: those of register_runner().
  // Releases the jobs of former instances. Returns the time in ms after which it must be called again, since processes
  // of a dead agent are still ending; 0: done. REQUIRES: enter() was successful.
  std::uint64_t give_back();
  std::uint64_t run_once();  // Calls enter(), give_back() and a callback. Returns the time in ms until the next call.
  bool registered() const { return registered_; }  // Thread-safe.
  // Returns the records by context. Thread-safe after registered() has returned true.
  const std::map<Id, RegisteredRunner>& runners() const { return runners_; }
  // Releases the runner id where this instance holds it, and marks the runner as stopped unless it was lost. REQUIRES:
  // run_once() is not called any more.
  void sign_off(bool runner_lost);

 private:
  Stores store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  RunnerHolder self_;
  PreviousInstances& former_;
  Id server_of_;
  Callbacks callbacks_;
  // Contexts with a successful registration; after a call without an answer, the id is free when its lease ends.
  std::set<Id> entered_;
  std::map<Id, RegisteredRunner> runners_;
  std::atomic<bool> registered_{false};
  unsigned failures_ = 0;  // consecutive failures
};

}  // namespace mycojobs
