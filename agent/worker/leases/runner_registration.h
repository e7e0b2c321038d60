// Registration of a runner id, which belongs to one agent at a time, and release of the jobs that former instances of
// the runner have claimed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/store_roles.h"
#include "worker/leases/instance_lock.h"
#include "worker/worker_types.h"

namespace mycojobs {

// Values of Runner::detail. A runner is marked as lost by another agent if it has not renewed its hold for more than a
// lease; its next heartbeat sets the value to running again. A runner that cannot start jobs has kRunnerPaused
// (model/runner_words.h) and the reason.
inline constexpr std::string_view kRunnerRunning = "running", kRunnerStopped = "stopped", kRunnerLost = "lost";
// Sets Runner::detail in the record of the runner. Does nothing if the record does not exist.
Result<void> mark_runner(RecordStore&, Id context, Id runner, std::string_view detail);

// Returns the hold of this process: a new instance name, the host, the boot id with the pid namespace, and the process
// id.
RunnerHolder current_instance();

// The former instances of a runner. Contexts may be processed at different times and in parallel. Thread-safe.
class PreviousInstances {
 public:
  PreviousInstances(std::unique_ptr<InstanceRecords>, const WorkerSettings&, const RunnerHolder& self);
  // Returns whether it is certain that no process of the instance is left.
  bool has_ended(const std::string& instance);
  // Reports that the agent of the instance has died on this host. release_jobs_of_previous() then waits up to half a
  // lease for the other processes of the instance to end.
  void agent_died(const std::string& instance);
  // Releases the jobs that former instances have claimed in these contexts to their queues, so that the jobs do not
  // wait for their leases. To be called before the runner claims jobs in the contexts. Only instances with has_ended()
  // are processed. The jobs of other instances, and jobs that could not be released, wait for their leases; this is
  // logged. An instance is forgotten when its jobs are released in every context of the settings. Returns true if
  // processes of an instance of agent_died() are still running and the wait is not over: call it again soon.
  bool release_jobs_of_previous(LeaseStore&, const std::vector<Id>& contexts, std::uint64_t now_boot_ms);

 private:
  std::vector<std::string> list_known();
  // Returns false if the store call failed.
  bool release_instance_jobs(LeaseStore&, Id context, const std::string& instance) const;
  bool mark_queried(Id context, const std::string& instance);  // Returns true once for each instance in a context.
  void on_jobs_released(Id context, const std::string& instance);
  bool should_wait_for_helpers(const std::vector<std::string>& instances, std::uint64_t now_boot_ms);

  const std::string self_;
  const Id runner_;
  const std::set<Id> contexts_;
  const std::uint64_t helper_timeout_ms_;
  // Guards the members below. Also serializes the attempts to lock a file: two concurrent attempts
  // would mistake each other for the living instance.
  std::mutex mutex_;
  const std::unique_ptr<InstanceRecords> records_;
  std::set<std::string> ended_instances_, dead_agents_;
  std::map<std::string, std::set<Id>> queried_contexts_, released_contexts_;  // by instance
  std::optional<std::uint64_t> helper_deadline_boot_ms_;
};

// Returns the record of the runner for a context: the record of the settings with the ceiling of the context
// (security/agent_ceilings.h).
Runner runner_record(const WorkerSettings&, Id context);

// The fields of the runner's record in a context that determine which jobs the agent claims there.
struct RegisteredRunner {
  std::string topic;
  bool serves_queues = false;  // if false, only its own queue and its topic
};

// Acquires the runner id in a context and returns the values of the record. A setting applies only if the record has no
// value; a difference is logged. An id is taken over at once if its holder is certainly gone (a process of this host
// that has ended, or an instance whose lock is free). Error conflict, with the remedy in its message: another instance
// holds the id, or the record has a public key that the agent does not have.
Result<RegisteredRunner> register_runner(StoreRoles<RunnerStore, RecordStore>, Id context, const WorkerSettings&,
                                         const RunnerHolder& self, PreviousInstances&);

}  // namespace mycojobs
