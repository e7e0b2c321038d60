// Deletes the artifacts that no job refers to. The record of a job lists its artifacts. A folder is compared with the
// record only when the record cannot change: while a job waits or runs, its files are kept.
//
//   spools of dead runs --> job folders, against their records --> objects with one name --> pause, and again
//
// Several agents may sweep the same folder at the same time: an agent checks each file again under the lock of the
// folder before it deletes the file.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "artifacts/artifact_usage.h"
#include "base/clock.h"
#include "store/store.h"

namespace mycojobs {

// Not thread-safe.
class ArtifactSweep {
 public:
  // An empty state_dir means that nothing is swept. every_ms: minimum time between the starts of two rounds.
  ArtifactSweep(const Clock& clock, std::string state_dir, std::uint64_t every_ms);
  // Does a small part of the due work in the context. Returns the time in ms until more work is due; an earlier call is
  // cheap. After an error of the store, no file with an unread record was deleted.
  Result<std::uint64_t> sweep_some(RecordStore&, Id context);

 private:
  enum class Phase { spools, jobs, objects };
  struct StepResult {
    Phase phase = Phase::spools;
    std::uint64_t began_ms = 0, next_ms = 0;                // on CLOCK_BOOTTIME
    std::vector<std::pair<std::string, std::string>> jobs;  // store_name and folder name; not processed yet
    std::vector<std::string> store_names;                   // all names that the store has had
    std::map<std::string, ArtifactUsage::Recount> counts;   // by store_name: sums of this round
    std::shared_ptr<DIR> objects;                           // current position
  };
  Result<void> continue_sweep(RecordStore&, Id context, StepResult&, std::uint64_t now_ms) const;
  Result<void> list_jobs(RecordStore&, Id context, StepResult&) const;
  Result<void> check_jobs(RecordStore&, Id context, StepResult&) const;
  void check_objects(Id context, StepResult&) const;
  void begin_counts(const ArtifactFolder&, StepResult&) const;
  void finish_counts(const ArtifactFolder&, StepResult&) const;

  const Clock& clock_;
  std::string state_dir_;
  std::uint64_t every_ms_;
  std::map<Id, StepResult> turns_;
};

}  // namespace mycojobs
