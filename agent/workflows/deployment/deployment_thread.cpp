#include "workflows/deployment/deployment_thread.h"

#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kFollowerIntervalMs = 60000;  // wait without the leadership; acquiring it wakes the thread
constexpr std::uint64_t kStoreRetryDelayMs = 250;     // pause between attempts to reach an unavailable store

}  // namespace

Result<std::unique_ptr<DeploymentThread>> DeploymentThread::start(StoreFactory& stores, const Clock& clock, Id context,
                                                                  StepRunner run_step, JobLimits limits,
                                                                  std::shared_ptr<Metrics> metrics) {
  Stores thread_stores;
  MJ_TRY(jobs, stores.open());
  thread_stores.jobs = std::move(jobs);
  MJ_TRY(flows, stores.open_flows());
  thread_stores.flows = std::move(flows);
  MJ_TRY(deployments, stores.open_workflows());
  thread_stores.deployments = std::move(deployments);
  MJ_TRY(waiter, stores.open_waiter({{context, ""}}, kDeploymentChannel));
  std::unique_ptr<DeploymentThread> thread(new DeploymentThread(std::move(thread_stores), std::move(waiter), clock,
                                                                context, std::move(run_step), std::move(limits),
                                                                std::move(metrics)));
  MJ_CHECK(thread->started());
  return thread;
}

DeploymentThread::DeploymentThread(Stores stores, std::unique_ptr<Waiter> waiter, const Clock& clock, Id context,
                                   StepRunner run_step, JobLimits limits, std::shared_ptr<Metrics> metrics)
    : ContextLoopBase(std::move(waiter), clock, hint_prefix(context)),
      stores_(std::move(stores)),
      loop_({*stores_.jobs, *stores_.flows, *stores_.deployments, std::move(run_step), clock, std::move(limits),
             std::move(metrics), [this] { wake(); }},
            context),
      log_once_("workflows", context) {}

void DeploymentThread::set_leader(bool is_leader) {
  if (is_leader_.exchange(is_leader) != is_leader) wake();
}

std::uint64_t DeploymentThread::run_once() {
  if (!is_leader_) {
    needs_recovery_ = true;
    return kFollowerIntervalMs;
  }
  auto recovered = needs_recovery_ ? loop_.recover() : Result<void>();
  const auto next = recovered ? loop_.run_round() : tl::unexpected<Error>(recovered.error());
  needs_recovery_ = !next;
  log_once_(next ? nullptr : &next.error());
  return next ? *next : kStoreRetryDelayMs;
}

}  // namespace mycojobs
