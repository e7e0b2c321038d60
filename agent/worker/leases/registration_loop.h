// Registers the runner (runner_registration.h) in the contexts of one Redis server, and releases the jobs that its
// previous instances have claimed there. If the server is unavailable when the agent starts, the registrar runs as a
// loop of base/loop_thread.h until the runner is registered; no job is claimed from the server before.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/loop_thread.h"
#include "store/store.h"
#include "store/store_health.h"
#include "worker/leases/runner_registration.h"
#include "worker/worker_types.h"

namespace mycojobs {

class Registrar : public TimedLoop {
 public:
  struct Callbacks {
    // Called from run_once() after the registration and the release of jobs. Error: threads could not be started; it is
    // called again later.
    std::function<Result<void>()> on_registered;
    // Called from run_once() if another instance holds the runner id, or the record has a public key that this agent
    // does not have.
    std::function<void(const std::string&)> on_runner_lost;
  };
  // server_context: the first context of the server, or 0 for the default server. settings: restricted to the contexts
  // of the server.
  Registrar(Store&, const Clock&, StoreHealth&, const WorkerSettings&, RunnerHolder, PreviousInstances&,
            Id server_context, Callbacks);

  Result<void> register_all();  // Registers in all contexts; may be repeated. Errors: those of register_runner().
  // Releases the jobs of previous instances. Returns 0 when all jobs are released. Otherwise processes of a dead agent
  // are still ending, and the function must be called again after the returned number of ms. REQUIRES: register_all()
  // has succeeded.
  std::uint64_t release_previous_jobs();
  // Registers, releases previous jobs, and calls a callback. Returns the time in ms until the next call.
  std::uint64_t run_once();
  bool is_registered() const { return registered_; }  // Thread-safe.
  // Returns the records by context. Thread-safe after is_registered() has returned true.
  const std::map<Id, RegisteredRunner>& registered_runners() const { return runners_; }
  // Releases the runner id where this instance holds it, and marks the runner as stopped unless it was lost. REQUIRES:
  // run_once() is not called any more.
  void release_runner_ids(bool runner_lost);

 private:
  Store& store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  RunnerHolder self_;
  PreviousInstances& previous_instances_;
  Id server_context_;
  Callbacks callbacks_;
  // Contexts with a successful registration. If a registration was not answered, its runner id becomes free when the
  // lease of the id ends.
  std::set<Id> registered_contexts_;
  std::map<Id, RegisteredRunner> runners_;
  std::atomic<bool> registered_{false};
  unsigned failures_ = 0;  // consecutive failures
};

}  // namespace mycojobs
