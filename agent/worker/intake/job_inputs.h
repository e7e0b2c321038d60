// The inputs of a job: results and files of the jobs that it depends on. read() reads the records of these jobs from
// the store. resolve() finds the files on this host, which can block on a disk. Files that a job has left on another
// host are found if they were fetched before (input_fetcher.h). Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor.h"
#include "store/record_store.h"
#include "worker/worker_types.h"

namespace mycojobs {

class JobInputs {
 public:
  struct Dependency {
    Id id = 0;
    std::string name;
    TextMap result;                        // result values by key
    std::vector<std::string> result_json;  // keys of `result` whose value is JSON text; other values are plain text
    std::string artifacts_json;            // the field `artifacts` of the record
    FileHolder holder = {};                // agent or coordinator that has the files
    std::string job_key = {};              // key of the job that stored the files
    std::vector<std::string> candidate_folders = {};            // folders on this host that can contain its files
    std::optional<std::vector<StoredArtifact>> artifacts = {};  // parsed from artifacts_json on first use
  };

  // state_dir: folder of the artifacts (artifacts/job_artifacts.h). Errors: unavailable (the store did not answer),
  // invalid (the records are too large).
  static Result<JobInputs> read(RecordStore&, const std::string& state_dir, const Job&);
  // Inserts values of results and of inputs of the flow into the variables and arguments of a job of a flow. Error
  // invalid: a reference has no value, or the expanded texts exceed the limits of a job; the message names the field.
  Result<void> expand_references(Job&) const;
  // Sets facts.inputs and facts.files. The key of a dependency is its name, if no other dependency has this name or id,
  // and otherwise its id. Reads from a disk only if facts.job.inputs is not empty. Errors: invalid (an entry of
  // facts.job.inputs does not exist or exceeds a limit), not_found (missing() lists files to fetch; repeat the call
  // afterwards). REQUIRES: called with the job that was passed to read(); any thread.
  Result<void> resolve(JobFacts& facts);
  // Returns the files that the latest resolve() has not found on this host and that another host has.
  const std::vector<MissingInput>& missing() const { return missing_; }

 private:
  JobInputs(Id context, std::vector<Dependency> dependencies)
      : context_(context), dependencies_(std::move(dependencies)) {}

  Id context_;
  std::vector<Dependency> dependencies_;
  std::vector<std::string> store_names_;  // artifact_store_names(); empty: nothing can be fetched
  std::vector<MissingInput> missing_;
};

}  // namespace mycojobs
