// Checks jobs that wait for prerequisites, in contexts without a coordinator (prerequisites/prerequisite_look.h). A
// loop of base/turns.h.
#pragma once

#include <map>
#include <memory>

#include "base/turns.h"
#include "prerequisites/prerequisite_look.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class PrerequisiteChecker : public TimedLoop {
 public:
  PrerequisiteChecker(PrerequisiteStores, const Clock&, StoreHealth&, WorkerSettings);
  std::uint64_t run_once();  // Returns the time in ms until the next call.
  void wait_until_due(std::uint64_t ms);

 private:
  void failed(Id context, const Error& error) { health_.failed(context, "checking prerequisites", error); }

  const Clock& clock_;
  StoreHealth& health_;
  std::vector<Id> contexts_;
  PrerequisiteEvaluator evaluator_;
  ContextPauses pauses_;
  std::map<Id, std::uint64_t> next_boot_ms_;
};

}  // namespace mycojobs
