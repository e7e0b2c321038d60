// Renews the leases of all claims and the hold on the runner id, in the contexts of one Redis server. It uses a
// separate connection to the store, so that neither a slow job nor a large output delays a heartbeat. Runs as a loop of
// base/loop_thread.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/live_value.h"
#include "base/loop_thread.h"
#include "store/store.h"
#include "store/store_health.h"
#include "worker/worker_types.h"

namespace mycojobs {

class LeaseKeeper : public TimedLoop {
 public:
  struct Callbacks {
    std::function<void(RunNumber, std::uint64_t fence_boot_ms)> on_renewed;
    std::function<void(RunNumber)> on_stale;      // the claim is no longer valid: the run must be killed
    std::function<void(RunNumber)> on_cancelled;  // cancellation of the job was requested
    // Another instance holds the runner id, or the record has a public key that this agent does not have. Receives the
    // error message.
    std::function<void(const std::string&)> on_runner_lost;
    std::function<std::string()> unready_reason = [] { return std::string(); };  // empty if the runner can start jobs
  };
  LeaseKeeper(Store&, const Clock&, StoreHealth&, WorkerSettings, RunnerHolder, Callbacks);

  // The following functions are thread-safe.
  void add(RunNumber, const ClaimRef&);
  void remove(std::span<const RunNumber>);
  std::map<Id, std::size_t> count_leases();                // Returns the number of leases by context.
  void renew_now() { wake(); }                             // Requests a heartbeat without waiting for the interval.
  void replace_ceilings(std::shared_ptr<const Ceilings>);  // ceilings that the runner's record publishes

  std::uint64_t run_once();  // Sends one heartbeat. Returns the time in ms until the next one.

 private:
  bool renew_leases(Id context);       // Returns false if the store call failed.
  bool renew_runner_hold(Id context);  // Returns false if the store call failed.

  Store& store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  RunnerHolder holder_;
  Callbacks callbacks_;
  ContextPauses pauses_;
  LiveValue<Ceilings> ceilings_;
  std::mutex mutex_;
  std::map<Id, std::map<RunNumber, ClaimRef>> claims_;  // by context
  unsigned failures_ = 0;                               // consecutive heartbeats with a failed call
};

}  // namespace mycojobs
