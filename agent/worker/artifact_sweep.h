// Takes away the artifacts that no job has any more. What a job has, its record says; a folder is compared with it only
// when the record is not about to change: while the job waits or runs, everything stays.
//
//   spools of dead runs --> job folders, against their records --> objects with one name --> pause, and again
//
// Any number of agents may do so in one folder at the same time: what one of them has seen is looked at again under the
// folder's lock before it goes.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/store.h"
#include "worker/artifact_usage.h"

namespace mycojobs {

// Of one thread.
class ArtifactSweep {
 public:
  // state_dir empty: there is nothing to do, ever. every_ms: between the beginnings of two rounds, at least.
  ArtifactSweep(const Clock& clock, std::string state_dir, std::uint64_t every_ms);
  // Does a small part of what is due in the context. Answers how long until there is something to do, in ms: cheap to
  // call sooner. Error: of the store; nothing was taken away that it had to be asked about.
  Result<std::uint64_t> look_after(RecordStore&, Id context);

 private:
  enum class Phase { spools, jobs, objects };
  struct Turn {
    Phase phase = Phase::spools;
    std::uint64_t began_ms = 0, next_ms = 0;                // on CLOCK_BOOTTIME
    std::vector<std::pair<std::string, std::string>> jobs;  // store_name, name of the folder: still to look at
    std::vector<std::string> store_names;                   // every one that the store has had
    std::map<std::string, ArtifactUsage::Count> counts;     // by store_name: what this round has counted in the folders
    std::shared_ptr<DIR> objects;                           // where we are
  };
  Result<void> go_on(RecordStore&, Id context, Turn&, std::uint64_t now_ms) const;
  Result<void> list_jobs(RecordStore&, Id context, Turn&) const;
  Result<void> look_at_jobs(RecordStore&, Id context, Turn&) const;
  void look_at_objects(Id context, Turn&) const;
  void begin_counts(const ArtifactFolder&, Turn&) const;
  void finish_counts(const ArtifactFolder&, Turn&) const;

  const Clock& clock_;
  std::string state_dir_;
  std::uint64_t every_ms_;
  std::map<Id, Turn> turns_;
};

}  // namespace mycojobs
