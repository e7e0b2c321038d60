// From a claimed record to what the run loop starts: whether it is a job that can run here, what its policy grants, and
// what is handed along (secrets, what the jobs have left that it depends on).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/live_value.h"
#include "mycojobs/clock.h"
#include "mycojobs/executor.h"
#include "mycojobs/store.h"
#include "worker/secrets_watch.h"
#include "worker/types.h"

namespace mycojobs {

struct StagedRuns;

// Whether the operator lets this agent run jobs of the type (setting script_types), whatever queue names them.
bool serves(const WorkerSettings&, const std::string& script_type);

// Of one thread, which waits for no disk but that of native programs (decision 0021). Settings, executors and secrets
// outlive it.
class JobPreparation {
 public:
  JobPreparation(const WorkerSettings&, const std::vector<const Executor*>&, const SecretsWatch&, const Clock&);
  // Nobody knows what is a secret of the context: none of its jobs can be prepared.
  bool lacks_secrets(Id context) const { return secrets_.of(context) == nullptr; }
  // Of a context that lacks no secrets. Error unavailable: what it depends on cannot be read now, which is no fault of
  // the job. Any other: the job cannot run; denied (its policy), unsupported (a helper does not work), invalid (names
  // the field).
  Result<Start> prepare(RecordStore&, Claimed&, std::uint64_t fence_boot_ms, RunNumber);
  void replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {
    ceilings_.replace(std::move(ceilings));
  }  // any thread

 private:
  Result<Job> read_job(const Claimed&) const;
  std::shared_ptr<const std::string> grant_of(const StagedRuns&);
  Result<const Executor*> executor_of(const Job&, const Claimed&) const;
  std::shared_ptr<ArtifactQueue> artifacts_of(RecordStore&, const ClaimRef&);

  const WorkerSettings& settings_;
  LiveValue<Ceilings> ceilings_;
  const Clock& clock_;
  std::map<std::string, const Executor*> by_type_;
  const SecretsWatch& secrets_;
  const std::string warm_secret_;  // of give_warm_key()
  struct Grant {
    Policy policy;
    std::vector<std::string> lowered;
    std::shared_ptr<const std::string> text;
  };
  std::vector<Grant> grants_;  // that were given last: most jobs have one of few
  std::size_t oldest_grant_ = 0;
  std::map<Id, std::string> store_names_;  // of artifacts, by context
};

}  // namespace mycojobs
