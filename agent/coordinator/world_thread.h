// A context's thread for its workflows, beside the one for its flows (coordinator.h): works while that one leads, so
// that long steps keep no flow waiting, nor the lease. Connections of its own: for jobs, flows, worlds, and to be woken
// by.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "coordinator/world_rounds.h"

namespace mycojobs {

class WorldThread {
 public:
  static Result<std::unique_ptr<WorldThread>> start(StoreFactory&, const Clock&, Id context, StepTaker,
                                                    std::shared_ptr<Metrics> = no_metrics());
  ~WorldThread();  // finishes the commit that is under way
  WorldThread(const WorldThread&) = delete;
  WorldThread& operator=(const WorldThread&) = delete;

  void set_leads(bool);  // any thread
  void ask_to_stop();    // any thread

 private:
  WorldThread() = default;
  void loop();
  void wait(std::uint64_t ms);

  Id context_ = 0;
  const Clock* clock_ = nullptr;
  std::string mine_;  // how hints of this context begin
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<WorkflowStore> worlds_;
  std::unique_ptr<Waiter> waiter_;
  std::unique_ptr<WorldRounds> rounds_;
  bool recovers_ = true;
  std::atomic<bool> leads_{false}, stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace mycojobs
