// The work of a coordinator for one context, in rounds. A thread calls run_round() in a loop; tests call it step by
// step.
//
//   run_round(): leadership --> due flows --> recovery (after leadership was acquired, then rarely) --> schedules
//                  --> timers
//
// A flow that cannot be advanced (missing definition, invalid record) is retried after a growing pause, so that it does
// not block other flows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "coordinator/context_gauges.h"
#include "coordinator/leadership.h"
#include "flows/flow_progress.h"
#include "jobs/job_limits.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

struct ContextSettings {
  Id context = 0;
  std::string instance, location;
  std::uint32_t lease_ms = 10000;
  std::uint64_t retention_ms = 0;
  JobLimits limits;  // limits of this context
  std::shared_ptr<Metrics> metrics = no_metrics();
};

// Not thread-safe. The clock must outlive the object.
class ContextLoop {
 public:
  ContextLoop(std::unique_ptr<FlowStore>, std::unique_ptr<Store>, const Clock&, ContextSettings);
  // Runs one round. Returns the time in ms until the next round is due if no event arrives before; 0 means that more
  // work is waiting. Error `unavailable`: the store did not answer.
  Result<std::uint64_t> run_round();
  // Marks a flow for the next round, before the list of due flows is read. Only flows in the cache are read, since any
  // client can publish a hint.
  void add_hint(Id flow) {
    if (hinted_flows_.size() < kMaxHintedFlows) hinted_flows_.insert(flow);
  }
  // Releases the leadership.
  void release() {
    leadership_.release(*flows_);
    gauges_.set_leader(false);
  }
  // Drops the cached flows. Call it after a reconnection, since the server may have lost records.
  void clear_cache() { cache_.clear_runs(); }
  bool is_leader() const { return leadership_.is_leader(); }
  bool is_recovering() const { return is_recovering_; }

 private:
  Result<void> recover_batch();
  Result<void> advance_hinted_flows();
  Result<bool> advance_due_flows(std::uint64_t& next_ms);
  Result<void> advance_flow(Id flow, bool recover);
  void defer_flow(Id flow, const Error&);
  Result<void> check_start(Id caller, const FlowPlan&);
  Result<void> run_maintenance(std::uint64_t now);

  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Store> store_;
  const Clock& clock_;
  ContextSettings settings_;
  Leadership leadership_;
  ContextGauges gauges_;
  RunCache cache_;
  bool is_recovering_ = false;
  bool is_newly_leader_ = false;  // the current recovery is the first one since leadership was acquired
  // Times are values of Clock::boot_ms().
  std::uint64_t recovery_start_ms_ = 0, next_recovery_ms_ = 0;
  Id last_recovered_ = 0;  // flows are recovered in the order of their ids
  std::uint64_t next_schedules_ms_ = 0, next_tick_ms_ = 0, next_retire_ms_ = 0;
  struct Backoff {
    std::string reason;
    std::uint64_t end_ms = 0, pause_ms = 0;
  };
  std::map<Id, Backoff> backoffs_;
  static constexpr std::size_t kMaxHintedFlows = 64;
  std::set<Id> hinted_flows_;
};

}  // namespace mycojobs
