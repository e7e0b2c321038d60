// The thread of a context for its workflows. It works while the thread for flows (coordinator/coordinator.h) holds the
// leadership, and is separate, so that a long step delays neither a flow nor the renewal of the lease. It has
// connections of its own for jobs, flows, deployments and wake-ups.
#pragma once

#include <atomic>
#include <memory>

#include "store/store_health.h"
#include "store/waiter_loop.h"
#include "workflows/deployment/deployment_loop.h"

namespace mycojobs {

class DeploymentThread final : public ContextLoopBase {
 public:
  static Result<std::unique_ptr<DeploymentThread>> start(StoreFactory&, const Clock&, Id context, StepRunner,
                                                         JobLimits = {}, std::shared_ptr<Metrics> = no_metrics());
  ~DeploymentThread() override { thread_.stop(); }  // Waits for the current commit.

  void set_leader(bool);  // any thread
  const Result<void>& started() const { return thread_.started(); }
  std::uint64_t run_once();

 private:
  struct Stores {
    std::unique_ptr<Store> jobs;
    std::unique_ptr<FlowStore> flows;
    std::unique_ptr<WorkflowStore> deployments;
  };
  DeploymentThread(Stores, std::unique_ptr<Waiter>, const Clock&, Id context, StepRunner, JobLimits,
                   std::shared_ptr<Metrics>);
  void reconnected() override { needs_recovery_ = true; }

  Stores stores_;
  DeploymentLoop loop_;
  LogOnce log_once_;
  bool needs_recovery_ = true;
  std::atomic<bool> is_leader_{false};
  LoopThread<DeploymentThread> thread_{*this};  // Last member: the thread uses all members above.
};

}  // namespace mycojobs
