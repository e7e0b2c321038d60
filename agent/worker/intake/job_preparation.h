// Converts a claimed record into a JobStart for the run loop: checks that the job can run here, determines the granted
// policy, and adds secrets and the results of the jobs that it depends on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/live_value.h"
#include "executors/executor.h"
#include "security/secret_watcher.h"
#include "store/claim_store.h"
#include "store/record_store.h"
#include "worker/worker_types.h"

namespace mycojobs {

struct StagedRuns;

// Returns whether the setting script_types lets this agent run jobs of the type, from any queue.
bool serves_script_type(const WorkerSettings&, const std::string& script_type);

// Not thread-safe. Reads from no disk except the disk of native programs (decision 0021). Settings, executors and
// secrets must outlive the object.
class JobPreparation {
 public:
  JobPreparation(const WorkerSettings&, const std::vector<const Executor*>&, const SecretWatcher&, const Clock&);
  // Returns whether the secrets of the context are unknown. None of its jobs can be prepared then.
  bool lacks_secrets(Id context) const { return secrets_.get(context) == nullptr; }
  // Prepares a job. Error unavailable: a dependency cannot be read now, which is not a fault of the job. Other errors
  // mean that the job cannot run: denied (by policy), unsupported (a helper does not work), invalid (names the field).
  // REQUIRES: !lacks_secrets() for the context.
  Result<JobStart> prepare(RecordStore&, ClaimedJob&, std::uint64_t fence_boot_ms, RunNumber);
  // Thread-safe.
  void replace_ceilings(std::shared_ptr<const Ceilings> ceilings) { ceilings_.replace(std::move(ceilings)); }

 private:
  Result<Job> read_job(const ClaimedJob&) const;
  std::shared_ptr<const std::string> get_grant_json(const StagedRuns&);
  Result<const Executor*> find_executor(const Job&, const ClaimedJob&) const;
  std::shared_ptr<ArtifactQueue> create_artifact_queue(RecordStore&, const ClaimRef&);
  // Sets the receivers of artifacts and output.
  void add_sinks(RecordStore&, const ClaimedJob&, const JobFacts&, JobStart&);
  // Returns null if the log is not stored on the disk. REQUIRES: called after create_artifact_queue().
  std::shared_ptr<LogSpool> create_log_spool(const ClaimedJob&, const Policy&) const;

  const WorkerSettings& settings_;
  LiveValue<Ceilings> ceilings_;
  const Clock& clock_;
  std::map<std::string, const Executor*> executors_by_type_;
  const SecretWatcher& secrets_;
  const std::string warm_secret_;  // argument of assign_warm_key()
  struct Grant {
    Policy policy;
    std::vector<std::string> lowered;
    std::shared_ptr<const std::string> json;
  };
  std::vector<Grant> grants_;              // cache of the latest grants, since most jobs have one of a few
  std::size_t oldest_grant_ = 0;           // index in grants_
  std::map<Id, std::string> store_names_;  // artifact_store_name() by context
  static constexpr std::size_t kMaxLogQueueBytes = 32U << 20;  // of the spools of all runs together
  const std::shared_ptr<LogQueueBytes> log_queue_bytes_ = std::make_shared<LogQueueBytes>(kMaxLogQueueBytes);
};

}  // namespace mycojobs
