// Files that jobs leave, kept on this host: <state_dir>/contexts/<context>/
//
//   objects/<sha256>                  the bytes, once for all jobs that left the same
//   jobs/<caller>.<job>/<sha256>      a hard link for each job that has it: an object with one name belongs to nobody
//
// As long as the job's record. Text is kept without the secrets of its context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "worker/redactor.h"

namespace mycojobs {

// A relative path of plain parts: no "..", no empty part, no control character, at most 512 bytes of UTF-8.
bool is_artifact_name(std::string_view name);
std::string object_path(const std::string& state_dir, Id context, const std::string& sha256);

// What one run leaves. Owned and called by one thread. The sink that its conversation writes into.
class RunArtifacts : public ArtifactSink {
 public:
  // Before the first byte; null: there are no secrets.
  virtual void keep_out(std::shared_ptr<const Redactor>) = 0;
  // Lines for the job's log, since the last call: what was not kept, and why.
  virtual std::vector<std::string> take_notes() = 0;
  // The run has ended: JSON object name -> {sha256, bytes, text}; "" if there are none. What is not whole is dropped.
  virtual std::string finish() = 0;
};

// A sink for one run of a job. state_dir empty: null, artifacts are passed over. run: tells runs of this agent apart.
// Error io: the folder cannot be made.
Result<std::unique_ptr<RunArtifacts>> make_run_artifacts(const std::string& state_dir, Id context,
                                                         const std::string& job_key, std::uint64_t run,
                                                         std::uint64_t max_bytes);

}  // namespace mycojobs
