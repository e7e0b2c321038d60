#include "workflows/deployment/deployment_thread.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFollowsMs = 60000;         // wait without the leadership; acquiring it wakes the thread
constexpr std::uint64_t kStoreUnavailableMs = 250;  // pause between attempts to reach an unavailable store

}  // namespace

Result<std::unique_ptr<DeploymentThread>> DeploymentThread::start(StoreFactory& stores, const Clock& clock, Id context,
                                                                  StepRunner take_step, JobLimits limits,
                                                                  std::shared_ptr<Metrics> metrics) {
  Stores mine;
  MJ_TRY(jobs, stores.open());
  mine.jobs = std::move(jobs);
  MJ_TRY(flows, stores.open_flows());
  mine.flows = std::move(flows);
  MJ_TRY(deployments, stores.open_workflows());
  mine.deployments = std::move(deployments);
  MJ_TRY(waiter, stores.open_waiter({{context, ""}}, kDeploymentChannel));
  std::unique_ptr<DeploymentThread> made(new DeploymentThread(
      std::move(mine), std::move(waiter), clock, context, std::move(take_step), std::move(limits), std::move(metrics)));
  MJ_CHECK(made->started());
  return made;
}

DeploymentThread::DeploymentThread(Stores stores, std::unique_ptr<Waiter> waiter, const Clock& clock, Id context,
                                   StepRunner take_step, JobLimits limits, std::shared_ptr<Metrics> metrics)
    : ContextLoopBase(std::move(waiter), clock, hints_of(context)),
      stores_(std::move(stores)),
      rounds_({*stores_.jobs, *stores_.flows, *stores_.deployments, std::move(take_step), clock, std::move(limits),
               std::move(metrics), [this] { wake(); }},
              context),
      log_once_("workflows", context) {}

void DeploymentThread::set_leads(bool leads) {
  if (leads_.exchange(leads) != leads) wake();
}

std::uint64_t DeploymentThread::run_once() {
  if (!leads_) {
    recovers_ = true;
    return kFollowsMs;
  }
  auto recovered = recovers_ ? rounds_.recover() : Result<void>();
  const auto next = recovered ? rounds_.round() : tl::unexpected<Error>(recovered.error());
  recovers_ = !next;
  log_once_(next ? nullptr : &next.error());
  return next ? *next : kStoreUnavailableMs;
}

}  // namespace mycojobs
