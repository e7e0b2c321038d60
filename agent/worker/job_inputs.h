// What a job gets from those that it depends on, in two parts: what their records say, which the store is asked for,
// and whether the files that they name are here, which a disk is asked for that may let us wait.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/store.h"

namespace mycojobs {

class JobInputs {
 public:
  struct Dependency {
    Id id = 0;
    std::string name;
    TextMap result;
    std::vector<std::string> result_json;
    std::string artifacts_json;
    std::vector<std::string> folders = {};                      // with the files that were kept for it on this host
    std::optional<std::vector<StoredArtifact>> artifacts = {};  // read when the first of them is asked for
  };

  // state_dir: where artifacts are kept (worker/artifacts.h). Error unavailable: the store is away; invalid: they are
  // too many.
  static Result<JobInputs> read(RecordStore&, const std::string& state_dir, const Job&);
  // Fills facts.inputs and facts.files for facts.job, the one that was read for: each once, under its name if no other
  // has that as its name or id, else under its id. Asks a disk if facts.job.inputs names something. Any thread, once.
  // Error invalid: names what the job asked for and does not exist.
  Result<void> find(JobFacts& facts);

 private:
  explicit JobInputs(std::vector<Dependency> all) : all_(std::move(all)) {}

  std::vector<Dependency> all_;
};

}  // namespace mycojobs
