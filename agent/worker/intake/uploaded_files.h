// The uploaded files of a job (model/upload.h). read() reads from the store which coordinator has each file. resolve()
// finds the files on this host, which can block on a disk: in the folder of the coordinator, if this host shares it, or
// in the cache, if they were fetched before (input_fetcher.h). Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "artifacts/artifact_folder.h"
#include "executors/executor.h"
#include "model/upload.h"
#include "store/record_store.h"
#include "worker/worker_types.h"

namespace mycojobs {

class UploadedFiles {
 public:
  // stored: the fields of load_stored_files(). Errors: unsupported (the job has uploads, and this agent has no
  // state_dir), and those of the store.
  static Result<UploadedFiles> read(RecordStore&, const std::string& state_dir, const Job&, const Fields& stored);
  bool is_empty() const { return uploads_.empty(); }
  // Sets facts.uploads. Errors: invalid (a file exceeds a limit of the policy), not_found (missing() lists files to
  // fetch; repeat the call afterwards). REQUIRES: facts.job.submitted_files is set; any thread.
  Result<void> resolve(JobFacts& facts);
  // Returns the files that the latest resolve() has not found on this host.
  const std::vector<MissingInput>& missing() const { return missing_; }

 private:
  UploadedFiles(const std::string& state_dir, const Job& job);
  std::string find_path(const StoredUpload&, const std::string& sha256) const;

  Id context_;
  std::string job_key_;
  ArtifactFolder folder_;
  std::map<std::string, StoredUpload> uploads_;  // uploads of the job by hash
  std::vector<std::string> store_names_;
  std::vector<MissingInput> missing_;
};

}  // namespace mycojobs
