// What a coordinator does for one context, one round after the other, in a thread of its own or step by step in tests.
//
//   round():  lead or wait --> due flows --> recover (when it becomes ours, then seldom) --> schedules --> what time
//   brings
//
// A flow that cannot be moved on (its definition is gone, the record is nonsense) is put off, so that it holds nobody
// up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "coordinator/context_gauges.h"
#include "coordinator/progress.h"
#include "domain/job_limits.h"
#include "mycojobs/clock.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Who leads a context. To lead is no right: the revisions of flows fence what anybody does. It only keeps coordinators
// from doing the same work. One thread.
class Leadership {
 public:
  Leadership(const Clock& clock, Id context, std::string instance, std::string where, std::uint32_t lease_ms)
      : clock_(clock),
        context_(context),
        instance_(std::move(instance)),
        where_(std::move(where)),
        lease_ms_(lease_ms) {}

  // Renews it, or tries to get it, when it is time to. Error: the store's; what we have is kept until its time is over.
  Result<void> keep(FlowStore&);
  bool leads() const { return leads_ && clock_.boot_ms() < until_boot_ms_; }
  bool newly();  // since this was last asked: what was under way is to be recovered
  void give_back(FlowStore&);
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
  JobLimits limits;  // of this context
  std::shared_ptr<Metrics> metrics = no_metrics();
};

class ContextRounds {
 public:
  ContextRounds(std::unique_ptr<FlowStore>, std::unique_ptr<Store>, const Clock&, ContextSettings);
  // How long until the next one, ms, if nothing happens meanwhile; 0: there is more to do. Error unavailable: the store
  // is away.
  Result<std::uint64_t> round();
  // Somebody says that something has happened in this flow: it is looked at before the list of those that are due is.
  // Of flows that we have at hand alone: anybody may say so.
  void hint(Id flow) {
    if (hinted_.size() < kMostHinted) hinted_.insert(flow);
  }
  void give_back() {
    leadership_.give_back(*flows_);
    gauges_.leads(false);
  }
  void reconnected() { cache_.forget_runs(); }  // the server may have lost what we remember
  bool leads() const { return leadership_.leads(); }
  bool recovering() const { return recovering_; }

 private:
  Result<void> recover_some();
  Result<void> move_hinted();
  Result<bool> move_due(std::uint64_t& next_ms);
  Result<void> move(Id flow, bool recover);
  void put_off(Id flow, const Error&);
  Result<void> may_start(Id caller, const FlowPlan&);
  Result<void> look_after(std::uint64_t now);

  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Store> store_;
  const Clock& clock_;
  ContextSettings settings_;
  Leadership leadership_;
  ContextGauges gauges_;
  RunCache cache_;
  bool recovering_ = false;
  bool ours_newly_ = false;                                             // it is the first recovery since we lead
  std::uint64_t recovering_since_ = 0, next_recover_ = 0;               // by our clock
  Id recovered_ = 0;                                                    // all flows up to this one
  std::uint64_t next_schedules_ = 0, next_tick_ = 0, next_retire_ = 0;  // by our clock
  struct PutOff {
    std::string why;
    std::uint64_t until = 0, pause = 0;
  };
  std::map<Id, PutOff> put_off_;
  static constexpr std::size_t kMostHinted = 64;
  std::set<Id> hinted_;
};

}  // namespace mycojobs
