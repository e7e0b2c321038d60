#include "worker/reconcile.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "worker/instance_lock.h"

namespace mycojobs {
namespace {

using std::chrono::steady_clock;
constexpr int kAgainMs = 5;  // a lock on a file cannot be waited for within a time

std::optional<Fd> wait_for_lock(const WorkerSettings& settings, const std::string& instance,
                                steady_clock::time_point until) {
  for (;;) {
    auto lock = lock_of_the_dead(settings.state_dir, settings.runner.id, instance);
    if (lock || steady_clock::now() >= until) return lock;
    ::poll(nullptr, 0, kAgainMs);
  }
}

// True: nothing of the instance is claimed any more.
bool give_back(LeaseStore& store, const WorkerSettings& settings, const std::string& instance) {
  bool all = true;
  for (Id context : settings.contexts) {
    auto jobs = store.expire_instance(context, settings.runner.id, instance);
    if (!jobs) {
      all = false;
      log(LogLevel::warn, "worker", "context {}: jobs of the dead instance {} wait for their leases: {}", context,
          instance, jobs.error().message);
      continue;
    }
    for (const std::string& job : *jobs) {
      log(LogLevel::warn, "worker",
          "{}: its agent, instance {} of runner {}, is gone with all its processes; back to its queue", job, instance,
          settings.runner.id);
    }
  }
  return all;
}

}  // namespace

void reconcile(LeaseStore& store, const WorkerSettings& settings, const RunnerHold& self,
               const std::vector<std::string>& gone) {
  if (settings.state_dir.empty()) return;
  const auto patience = steady_clock::now() + std::chrono::milliseconds(settings.lease_ms / 2);
  for (const std::string& instance : known_instances(settings.state_dir, settings.runner.id)) {
    if (instance == self.instance) continue;
    const bool agent_is_gone = std::find(gone.begin(), gone.end(), instance) != gone.end();
    const auto lock = wait_for_lock(settings, instance, agent_is_gone ? patience : steady_clock::now());
    if (!lock) {
      // Others may be agents of another Redis with the same id.
      log(agent_is_gone ? LogLevel::warn : LogLevel::debug, "worker",
          "processes of instance {} of runner {} are still there: its jobs, if any, wait for their leases", instance,
          settings.runner.id);
    } else if (give_back(store, settings, instance)) {
      forget_instance(settings.state_dir, settings.runner.id, instance);
    }
  }
}

}  // namespace mycojobs
