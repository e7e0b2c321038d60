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
#include "model/retention.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

struct ContextSettings {
  Id context = 0;
  std::string instance;            // random id of this process
  std::string location;            // host and pid, shown to operators
  std::uint32_t lease_ms = 10000;  // duration of the leadership lease
  Retention retention;             // of ended flows and messages
  JobLimits limits;                // limits of the jobs of flows that a schedule starts
  std::shared_ptr<Metrics> metrics = no_metrics();
};

// Not thread-safe. The clock must outlive the object.
class ContextLoop {
 public:
  ContextLoop(std::unique_ptr<FlowStore>, std::unique_ptr<Store>, const Clock&, ContextSettings);
  // Runs one round. Returns the time in ms until the next round is due if no event arrives before; 0 means that more
  // work is waiting. Returns the error `unavailable` if the store did not answer. max_idle_ms is the longest time
  // between two reads of the store without a hint; more than kMaxPollIntervalMs requires that all hints are received.
  Result<std::uint64_t> run_round(std::uint64_t max_idle_ms = kMaxPollIntervalMs);
  static constexpr std::uint64_t kMaxPollIntervalMs = 1000;
  // Marks a flow for the next round, before the list of due flows is read. Only flows in the cache are read, since any
  // client can publish a hint. Flow 0 means that a schedule was changed.
  void add_hint(Id flow) {
    next_due_flows_ms_ = 0;
    if (flow == 0) next_schedules_ms_ = 0;
    if (flow != 0 && hinted_flows_.size() < kMaxHintedFlows) hinted_flows_.insert(flow);
  }
  // Releases the leadership.
  void release() {
    leadership_.release(*flows_);
    gauges_.set_leader(false);
  }
  // Drops the cached flows. Call it after a reconnection, since the server may have lost records.
  void clear_cache() {
    cache_.clear_runs();
    next_due_flows_ms_ = next_schedules_ms_ = next_store_tick_ms_ = 0;
  }
  bool is_leader() const { return leadership_.is_leader(); }
  bool is_recovering() const { return is_recovering_; }

 private:
  Result<void> recover_batch();
  Result<void> advance_hinted_flows();
  Result<bool> advance_due_flows(std::uint64_t& ms_until_next_round);
  // With must_check_jobs, also compares the states of all jobs and child flows with the store.
  Result<void> advance_flow(Id flow, bool must_check_jobs);
  // Sets the time of the next attempt for a flow that could not be advanced.
  void defer_flow(Id flow, const Error&);
  // Returns an error if a schedule of the caller may not start a flow with this plan.
  Result<void> check_scheduled_start(Id caller, const FlowPlan&);
  Result<void> run_maintenance(std::uint64_t now, std::uint64_t max_idle_ms);
  Result<void> tick_store(std::uint64_t now, std::uint64_t max_idle_ms);

  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Store> store_;
  const Clock& clock_;
  ContextSettings settings_;
  Leadership leadership_;
  ContextGauges gauges_;
  RunCache cache_;
  bool is_recovering_ = false;
  // True from the acquisition of leadership until the first recovery has completed.
  bool is_first_recovery_pending_ = false;
  // Times are values of Clock::boot_ms(). 0 means that the work is due at once.
  std::uint64_t recovery_start_ms_ = 0, next_recovery_ms_ = 0;
  Id last_recovered_ = 0;  // flows are recovered in the order of their ids
  std::uint64_t next_due_flows_ms_ = 0, next_schedules_ms_ = 0, next_store_tick_ms_ = 0, next_flow_retirement_ms_ = 0;
  std::uint64_t tick_interval_ms_ = 0;  // interval between two ticks of the store without work
  struct Backoff {
    std::string reason;
    std::uint64_t end_ms = 0, pause_ms = 0;
  };
  std::map<Id, Backoff> backoffs_;
  static constexpr std::size_t kMaxHintedFlows = 64;
  std::set<Id> hinted_flows_;
};

}  // namespace mycojobs
