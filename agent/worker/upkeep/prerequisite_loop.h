// Checks jobs that wait for prerequisites, in contexts without a coordinator (jobs/prerequisite_checks.h). A
// loop of base/loop_thread.h.
#pragma once

#include <map>
#include <memory>

#include "base/loop_thread.h"
#include "jobs/prerequisite_checks.h"
#include "store/store_health.h"
#include "worker/worker_types.h"

namespace mycojobs {

class PrerequisiteChecker : public TimedLoop {
 public:
  PrerequisiteChecker(Store&, const Clock&, StoreHealth&, WorkerSettings);
  std::uint64_t run_once();  // Returns the time in ms until the next call.
  void wait_until_due(std::uint64_t ms);

 private:
  void on_failed(Id context, const Error& error) { health_.on_failure(context, "checking prerequisites", error); }

  const Clock& clock_;
  StoreHealth& health_;
  std::vector<Id> contexts_;
  PrerequisiteEvaluator evaluator_;
  ContextPauses pauses_;
  std::map<Id, std::uint64_t> next_checks_boot_ms_;  // by context
};

}  // namespace mycojobs
