// Checks jobs that wait for prerequisites, in contexts without a coordinator (jobs/prerequisite_checks.h). A
// loop of base/loop_thread.h.
#pragma once

#include <map>
#include <mutex>

#include "base/loop_thread.h"
#include "jobs/prerequisite_checks.h"
#include "store/store_health.h"
#include "worker/worker_types.h"

namespace mycojobs {

class PrerequisiteChecker : public TimedLoop {
 public:
  PrerequisiteChecker(Store&, const Clock&, StoreHealth&, WorkerSettings);
  // Reports that jobs of the context wait for prerequisites. Without such reports a context is checked rarely.
  // Thread-safe.
  void on_jobs_waiting(Id context);
  std::uint64_t run_once();  // Returns the time in ms until the next call.
  void wait_until_due(std::uint64_t ms);

 private:
  bool has_waiting_jobs(Id context);
  std::uint64_t get_next_check_ms(Id context);  // on CLOCK_BOOTTIME
  void on_failed(Id context, const Error& error) { health_.on_failure(context, "checking prerequisites", error); }

  const Clock& clock_;
  StoreHealth& health_;
  std::vector<Id> contexts_;
  PrerequisiteEvaluator evaluator_;
  ContextPauses pauses_;
  struct Check {
    std::uint64_t boot_ms = 0, interval_ms = 0;  // its time, and the interval until the next one if jobs are waiting
  };
  std::map<Id, Check> last_checks_;  // by context
  std::mutex mutex_;
  std::map<Id, std::uint64_t> reported_boot_ms_;  // time of the last report by context; guarded by mutex_
};

}  // namespace mycojobs
