// The work of a coordinator for one context, in rounds. A thread calls round() in a loop; tests call it step by step.
//
//   round(): leadership --> due flows --> recovery (after leadership was acquired, then rarely) --> schedules
//              --> timers
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
#include "flows/flow_progress.h"
#include "jobs/job_limits.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

// The leadership of a context. Leadership only avoids duplicate work between coordinators. It is not needed for
// correctness, since every write to a flow is fenced by the revision of the flow. Not thread-safe.
class Leadership {
 public:
  Leadership(const Clock& clock, Id context, std::string instance, std::string where, std::uint32_t lease_ms)
      : clock_(clock),
        context_(context),
        instance_(std::move(instance)),
        where_(std::move(where)),
        lease_ms_(lease_ms) {}

  // Renews the leadership, or tries to acquire it, when the interval has passed. After an error of the store, a held
  // leadership stays valid until its lease expires.
  Result<void> renew(FlowStore&);
  bool is_leader() const { return leads_ && clock_.boot_ms() < until_boot_ms_; }
  // Returns whether leadership was acquired since the previous call, so that active flows must be recovered.
  bool was_acquired();
  void release(FlowStore&);
  std::uint64_t next_boot_ms() const { return next_boot_ms_; }

 private:
  const Clock& clock_;
  Id context_;
  std::string instance_, where_;
  std::uint32_t lease_ms_;
  bool leads_ = false, newly_ = false;
  std::uint64_t until_boot_ms_ = 0, next_boot_ms_ = 0;
};

struct ContextSettings {
  Id context = 0;
  std::string instance, where;
  std::uint32_t lease_ms = 10000;
  std::uint64_t retention_ms = 0;
  JobLimits limits;  // limits of this context
  std::shared_ptr<Metrics> metrics = no_metrics();
};

class ContextLoop {
 public:
  ContextLoop(std::unique_ptr<FlowStore>, std::unique_ptr<Store>, const Clock&, ContextSettings);
  // Runs one round. Returns the time in ms until the next round is due if no event arrives before; 0 means that more
  // work is waiting. Error `unavailable`: the store did not answer.
  Result<std::uint64_t> round();
  // Marks a flow for the next round, before the list of due flows is read. Only flows in the cache are read, since any
  // client can publish a hint.
  void hint(Id flow) {
    if (hinted_.size() < kMaxHinted) hinted_.insert(flow);
  }
  void release() {
    leadership_.release(*flows_);
    gauges_.set_leader(false);
  }
  // Drops the cache after a reconnection, since the server may have lost records.
  void reconnected() { cache_.forget_runs(); }
  bool is_leader() const { return leadership_.is_leader(); }
  bool recovering() const { return recovering_; }

 private:
  Result<void> recover_batch();
  Result<void> advance_hinted_flows();
  Result<bool> advance_due_flows(std::uint64_t& next_ms);
  Result<void> advance_flow(Id flow, bool recover);
  void back_off(Id flow, const Error&);
  Result<void> check_start(Id caller, const FlowPlan&);
  Result<void> run_maintenance(std::uint64_t now);

  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Store> store_;
  const Clock& clock_;
  ContextSettings settings_;
  Leadership leadership_;
  ContextGauges gauges_;
  RunCache cache_;
  bool recovering_ = false;
  bool is_newly_leader_ = false;  // the current recovery is the first one since leadership was acquired
  // Times of the local clock.
  std::uint64_t recovering_since_ = 0, next_recover_ = 0;
  Id recovered_ = 0;  // last flow that was recovered; flows are recovered in the order of their ids
  std::uint64_t next_schedules_ = 0, next_tick_ = 0, next_retire_ = 0;
  struct Backoff {
    std::string why;
    std::uint64_t until = 0, pause = 0;
  };
  std::map<Id, Backoff> backoffs_;
  static constexpr std::size_t kMaxHinted = 64;
  std::set<Id> hinted_;
};

}  // namespace mycojobs
