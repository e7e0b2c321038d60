// A runner id belongs to one agent at a time: who takes it, and what becomes of the jobs of those that had it before.
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

#include "mycojobs/store_roles.h"
#include "worker/instance_lock.h"
#include "worker/types.h"

namespace mycojobs {

// Words of Runner::detail. Lost: silent for more than a lease, as other agents saw it; its next heartbeat, if one
// comes, says running again.
// A runner that can start no jobs has kRunnerPaused (mycojobs/runner_words.h) and the reason.
inline constexpr std::string_view kRunnerRunning = "running", kRunnerStopped = "stopped", kRunnerLost = "lost";
Result<void> mark_runner(RecordStore&, Id context, Id runner, std::string_view detail);

// Who we are: a new instance name, this host, this boot, this process.
RunnerHold describe_self();

// What had the id of a runner before it. Its contexts may be asked at the same time and at different times; any thread.
class FormerInstances {
 public:
  FormerInstances(std::unique_ptr<InstanceRecords>, const WorkerSettings&, const RunnerHold& self);
  // Whether it is certain that no process of the instance is left.
  bool is_gone(const std::string& instance);
  // Its agent is known to have died on this host: its helpers are given half a lease to follow it.
  void agent_died(const std::string& instance);
  // Before it takes work from these contexts, a runner gives back what its former instances have claimed there: these
  // jobs need not wait for their leases where is_gone(). What cannot be proved or given back is left to the leases, and
  // the log says so. An instance is forgotten once that is done in every context of the settings. True: such helpers
  // are still there; call it again soon.
  bool give_back(LeaseStore&, const std::vector<Id>& contexts, std::uint64_t now_boot_ms);

 private:
  std::vector<std::string> known();
  bool give_back_jobs(LeaseStore&, Id context,
                      const std::string& instance) const;  // true: nothing of it is claimed now
  bool may_ask(Id context, const std::string& instance);   // once
  void done(Id context, const std::string& instance);
  bool are_waited_for(const std::vector<std::string>& instances, std::uint64_t now_boot_ms);

  const std::string self_;
  const Id runner_;
  const std::set<Id> contexts_;
  const std::uint64_t patience_ms_;
  std::mutex mutex_;  // of what follows; and two that try for one lock would each take the other for the instance
  const std::unique_ptr<InstanceRecords> records_;
  std::set<std::string> gone_, died_;
  std::map<std::string, std::set<Id>> asked_, done_;  // by instance
  std::optional<std::uint64_t> patient_until_boot_ms_;
};

// The runner's record for a context: that of the settings, with the context's ceiling (domain/agent_ceilings.h).
Runner runner_record(const WorkerSettings&, Id context);

// How the record of a runner says that its agent takes work in a context.
struct RegisteredRunner {
  std::string topic;
  bool takes_queues = false;  // its own queue alone, and its topic, if not
};

// Takes the runner's id in a context, and returns what its record says there: the settings count where the record says
// nothing, and a difference is logged. An id whose holder is gone for certain (a process of this host that has ended,
// an instance whose lock is free) is taken over at once. Error conflict, whose message names the remedy: the id is held
// elsewhere, or the record has a public key that the agent does not hold.
Result<RegisteredRunner> register_runner(RolesOf<RunnerStore, RecordStore>, Id context, const WorkerSettings&,
                                         const RunnerHold& self, FormerInstances&);

}  // namespace mycojobs
