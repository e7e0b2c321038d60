// The loop of a context for its workflows, on the threads of a pool. It works while the loop for flows
// (coordinator/coordinator.h) holds the leadership. The pool is not that of the flows, so that a long round delays
// neither a flow nor the renewal of the lease.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "store/hinted_loop.h"
#include "store/store_health.h"
#include "workflows/deployment/deployment_loop.h"

namespace mycojobs {

class PooledDeploymentLoop final : public HintedLoop {
 public:
  static Result<std::unique_ptr<PooledDeploymentLoop>> start(StoreFactory&, const Clock&, LoopPool&, Id context,
                                                             StepRunner, JobLimits = {},
                                                             std::shared_ptr<Metrics> = no_metrics(),
                                                             DeploymentLimits = {});
  ~PooledDeploymentLoop() override { end(); }  // Waits for the current commit.

  void set_leader(bool);  // any thread

 private:
  struct Stores {
    std::unique_ptr<Store> jobs;
    std::unique_ptr<FlowStore> flows;
    std::unique_ptr<WorkflowStore> deployments;
    std::vector<std::unique_ptr<WorkflowStore>> cells;
    std::vector<WorkflowStore*> cell_stores() const;
  };
  PooledDeploymentLoop(Stores, const Clock&, Id context, StepRunner, JobLimits, std::shared_ptr<Metrics>,
                       DeploymentLimits);
  std::uint64_t run_iteration() override;
  void reconnected() override { needs_recovery_ = true; }

  Stores stores_;
  DeploymentLoop loop_;
  LogOnce log_once_;
  bool needs_recovery_ = true;
  std::atomic<bool> is_leader_{false};
};

}  // namespace mycojobs
