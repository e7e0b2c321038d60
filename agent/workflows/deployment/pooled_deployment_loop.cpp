#include "workflows/deployment/pooled_deployment_loop.h"

#include <algorithm>

#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFollowerIntervalMs = 60000;  // pause without the leadership; acquiring it wakes the loop
constexpr std::size_t kMaxCellStores = 4;             // reads of instances at a time; an unused store has no connection
constexpr std::uint64_t kStoreRetryDelayMs = 250;     // pause between attempts to reach an unavailable store

}  // namespace

Result<std::unique_ptr<PooledDeploymentLoop>> PooledDeploymentLoop::start(StoreFactory& stores, const Clock& clock,
                                                                          LoopPool& pool, Id context,
                                                                          StepRunner run_step, JobLimits limits,
                                                                          std::shared_ptr<Metrics> metrics,
                                                                          DeploymentLimits deployment_limits) {
  Stores loop_stores;
  MJ_TRY(jobs, stores.open());
  loop_stores.jobs = std::move(jobs);
  MJ_TRY(flows, stores.open_flows());
  loop_stores.flows = std::move(flows);
  MJ_TRY(deployments, stores.open_workflows());
  loop_stores.deployments = std::move(deployments);
  while (loop_stores.cells.size() < kMaxCellStores) {
    MJ_TRY(cells, stores.open_workflows());
    loop_stores.cells.push_back(std::move(cells));
  }
  std::unique_ptr<PooledDeploymentLoop> loop(
      new PooledDeploymentLoop(std::move(loop_stores), clock, context, std::move(run_step), std::move(limits),
                               std::move(metrics), std::move(deployment_limits)));
  MJ_CHECK(loop->begin(stores, context, {{kDeploymentChannel}, {}}, pool));
  return loop;
}

PooledDeploymentLoop::PooledDeploymentLoop(Stores stores, const Clock& clock, Id context, StepRunner run_step,
                                           JobLimits limits, std::shared_ptr<Metrics> metrics,
                                           DeploymentLimits deployment_limits)
    : HintedLoop(hint_prefix(context)),
      stores_(std::move(stores)),
      loop_({*stores_.jobs, *stores_.flows, *stores_.deployments, std::move(run_step), clock, std::move(limits),
             std::move(metrics), [this] { wake(); }, stores_.cell_stores()},
            context, std::move(deployment_limits)),
      log_once_("workflows", context) {}

std::vector<WorkflowStore*> PooledDeploymentLoop::Stores::cell_stores() const {
  std::vector<WorkflowStore*> stores;
  for (const auto& store : cells) stores.push_back(store.get());
  return stores;
}

void PooledDeploymentLoop::set_leader(bool is_leader) {
  if (is_leader_.exchange(is_leader) != is_leader) wake();
}

std::uint64_t PooledDeploymentLoop::run_iteration() {
  if (!is_leader_) {
    needs_recovery_ = true;
    return kFollowerIntervalMs;
  }
  auto recovered = needs_recovery_ ? loop_.recover() : Result<void>();
  const auto next = recovered ? loop_.run_round() : tl::unexpected<Error>(recovered.error());
  needs_recovery_ = !next;
  log_once_(next ? nullptr : &next.error());
  return next ? std::min(max_idle_ms(), *next) : kStoreRetryDelayMs;
}

}  // namespace mycojobs
