// Registers an agent under its runner id, which belongs to one agent at a time, and releases the jobs that previous
// instances of the runner have claimed.
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

#include "store/store.h"
#include "worker/leases/instance_lock.h"
#include "worker/worker_types.h"

namespace mycojobs {

// Values of Runner::detail. Another agent marks a runner as lost if the runner has not renewed its hold for more than
// the length of a lease. The next heartbeat of the runner sets the value to kRunnerRunning again. A runner that cannot
// start jobs has kRunnerPaused (model/runner_words.h) and the reason.
inline constexpr std::string_view kRunnerRunning = "running", kRunnerStopped = "stopped", kRunnerLost = "lost";
// Sets Runner::detail in the record of the runner. Does nothing if the record does not exist.
Result<void> mark_runner(RecordStore&, Id context, Id runner, std::string_view detail);

// Returns the identity under which this process holds runner ids: a new instance name, the host, the boot id with the
// pid namespace, and the process id.
RunnerHolder current_instance();

// The previous instances of a runner on this host, as far as they have a record (InstanceRecords). Contexts may be
// processed at different times and in parallel. Thread-safe.
class PreviousInstances {
 public:
  PreviousInstances(std::unique_ptr<InstanceRecords>, const WorkerSettings&, const RunnerHolder& self);
  // Returns whether it is certain that all processes of the instance have ended.
  bool has_ended(const std::string& instance);
  // Reports that the agent of the instance has died on this host. The instance may still have other processes, such as
  // its launcher. release_jobs_of_previous() then returns true until they have ended or a time limit is reached.
  void on_agent_died(const std::string& instance);
  // Releases the jobs that previous instances have claimed in these contexts to their queues, so that the jobs do not
  // wait until their leases expire. Only instances with has_ended() are processed. All other jobs, and jobs that could
  // not be released, wait until their leases expire; this is logged. The record of an instance is deleted when its jobs
  // are released in every context of the settings.
  // Returns true while processes of an instance of on_agent_died() are still running: the caller should then call it
  // again soon. Half the length of a lease after the first call, it returns false in any case.
  // REQUIRES: called before the runner claims jobs in the contexts.
  bool release_jobs_of_previous(LeaseStore&, const std::vector<Id>& contexts, std::uint64_t now_boot_ms);

 private:
  std::vector<std::string> list_recorded_instances();
  // Returns false if the store call failed.
  bool release_instance_jobs(LeaseStore&, Id context, const std::string& instance) const;
  // Returns true for the first call for an instance in a context only, so that its jobs are released once.
  bool add_release_attempt(Id context, const std::string& instance);
  void on_jobs_released(Id context, const std::string& instance);
  // Returns whether processes of a dead agent, such as its launcher, may still end before the common deadline.
  bool should_wait_for_helpers(const std::vector<std::string>& instances, std::uint64_t now_boot_ms);

  const std::string self_;
  const Id runner_;
  const std::set<Id> contexts_;
  const std::uint64_t helper_timeout_ms_;  // maximum wait for the launcher and other processes of a dead agent
  // Guards the members below. Also serializes the attempts to lock the file of an instance: two concurrent attempts
  // would mistake each other for a living instance.
  std::mutex mutex_;
  const std::unique_ptr<InstanceRecords> records_;
  std::set<std::string> ended_instances_, dead_agents_;
  std::map<std::string, std::set<Id>> attempted_contexts_, released_contexts_;  // by instance
  std::optional<std::uint64_t> helper_deadline_boot_ms_;
};

// Builds the record of this runner for a context: the record of the settings plus the published ceiling of the context
// (security/agent_ceilings.h).
Runner make_runner_record(const WorkerSettings&, Id context);

// The fields of the runner's record in a context that determine which jobs the agent claims there.
struct RegisteredRunner {
  std::string topic;
  bool serves_queues = false;  // if false, the agent claims jobs only from its own queue and from its topic
};

// Acquires the runner id in a context and returns the values of the record. A setting applies only if the record has no
// value; differences are logged. An id is taken over at once if it is certain that its holder has ended: a process of
// this host, or an instance whose file lock is free. Errors: conflict, with the remedy in the message (another instance
// holds the id, or the record has a public key that the agent does not have), and errors of the store.
Result<RegisteredRunner> register_runner(Store&, Id context, const WorkerSettings&, const RunnerHolder& self,
                                         PreviousInstances&);

}  // namespace mycojobs
