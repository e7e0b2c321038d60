// The inputs of a job: results and files of the jobs that it depends on. read() reads the records of these jobs from
// the store. resolve() checks that the files are on this host, which can block on a disk. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor.h"
#include "store/record_store.h"

namespace mycojobs {

class JobInputs {
 public:
  struct Dependency {
    Id id = 0;
    std::string name;
    TextMap result;                        // result values by key
    std::vector<std::string> result_json;  // keys of `result` whose value is JSON text; other values are plain text
    std::string artifacts_json;            // the field `artifacts` of the record
    std::vector<std::string> candidate_folders = {};            // folders on this host that can contain its files
    std::optional<std::vector<StoredArtifact>> artifacts = {};  // parsed from artifacts_json on first use
  };

  // state_dir: folder of the artifacts (artifacts/job_artifacts.h). Errors: unavailable (the store did not answer),
  // invalid (the records are too large).
  static Result<JobInputs> read(RecordStore&, const std::string& state_dir, const Job&);
  // Sets facts.inputs and facts.files. The key of a dependency is its name, if no other dependency has this name or id,
  // and otherwise its id. Reads from a disk only if facts.job.inputs is not empty. Error invalid: an entry of
  // facts.job.inputs does not exist or exceeds a limit. REQUIRES: called once, with the job that was passed to read();
  // any thread.
  Result<void> resolve(JobFacts& facts);

 private:
  explicit JobInputs(std::vector<Dependency> dependencies) : dependencies_(std::move(dependencies)) {}

  std::vector<Dependency> dependencies_;
};

}  // namespace mycojobs
