// Stores the artifacts of jobs on this host, in <state_dir>/contexts/<context>/:
//
//   objects/<sha256>                          the content, once for all jobs that have stored the same content
//   jobs/<store>/<caller>.<job>/<sha256>      a hard link to the object for each job that has the content; an object
//                                             without another link belongs to no job
//   cache/<store>/<caller>.<job>/<sha256>     copies of files that a job stored on another host
//                                             (artifacts/transfer/artifact_cache.h)
//   spool/<run>/, spool/<run>.lock            the files of a run that has not ended; the run holds the lock
//   usage-<store>, usage-<store>.lock         space of the artifacts of each caller (artifacts/artifact_usage.h)
//   lock                                      shared: creation of links; exclusive: deletion of files
//
// Artifacts are stored as long as the record of their job exists (artifacts/artifact_cleanup.h). Several stores can
// share a folder, and the record of a job in one store does not describe the job with the same key in another store;
// therefore <store> is part of the path (artifact_store_name()). Text is stored after redaction. Folders have mode
// 0700, files 0600. Nothing is synced: after a loss of power a file may be damaged, which a reader detects by its hash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/artifact_file.h"
#include "artifacts/artifact_store.h"
#include "artifacts/artifact_usage.h"
#include "base/fd.h"
#include "base/result.h"
#include "model/artifact.h"
#include "model/records.h"
#include "security/redactor.h"
#include "store/record_store.h"

namespace mycojobs {

std::string object_path(const std::string& state_dir, Id context, const std::string& sha256);

// Returns the folders on this host that can contain files of the job: one for each name of the store.
std::vector<std::string> artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names);
// Returns these folders, and then the folders that can contain copies of files that the job stored on another host.
std::vector<std::string> all_artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                              const std::vector<std::string>& store_names);
// Opens a file of a job in one of its folders. Returns an empty descriptor if the folder has no regular file with this
// hash and size. Error io: the file cannot be opened.
Result<Fd> open_job_file(const std::string& folder, const FileContent&);
// Reads this number of bytes from a file. Error io: the file cannot be read, or it ends earlier.
Result<std::string> read_file_piece(int fd, std::uint64_t offset, std::size_t bytes);
// Returns the artifacts that the field `artifacts` of a record lists, or no artifacts if the text is empty or cannot be
// parsed. StoredArtifact::path is in one of `folders`, which are the folders of the job: a client that can write the
// record must not get access to a file of another job by its hash. The file need not exist.
std::vector<StoredArtifact> read_artifacts(const std::string& json, const std::vector<std::string>& folders);

// Moves a complete file to the folder of the objects, unless it contains an object with the same content, and links the
// object at link_path in the folder of the job. Error io: a link cannot be created. REQUIRES: the caller holds the lock
// of the folder (artifacts/artifact_folder.h).
Result<void> link_artifact(const CompleteFile&, const std::string& object_path, const std::string& link_path);

// Returns the name of this store among the stores that have artifacts on this host. The first caller generates the name
// and saves it in the store. Errors: those of Store::load.
Result<std::string> artifact_store_name(RecordStore&, Id context);
// Returns all names of the store. There are several names if two callers generated one at the same time.
Result<std::vector<std::string>> artifact_store_names(RecordStore&, Id context);

// Writes the artifacts of one run to the disk. Each call can block (artifacts/artifact_queue.h). Until finish() the
// files are temporary; after a crash of the agent, ArtifactCleanup deletes them.
class RunArtifacts : public ArtifactSink {
 public:
  // Sets the redactor, or null without secrets. REQUIRES: called before the first byte.
  virtual void set_redactor(std::shared_ptr<const Redactor>) = 0;
  // Refuses an artifact with this name, or in a folder with this name, until release_reserved_name(). The artifact that
  // is opened then is the log of the job: its limit is that of all other artifacts of the job together.
  virtual void set_reserved_name(const std::string& /*name*/) {}
  virtual void release_reserved_name() {}
  // Removes and returns new lines for the log of the job: the artifacts that were not stored, with the reasons.
  virtual std::vector<std::string> consume_notes() = 0;
  // Stores the complete artifacts after the run has ended, and drops incomplete ones. Returns a JSON object name ->
  // {sha256, bytes, text, executable (only if true)}, or "" without artifacts. Waits for the lock of the folder. Can
  // add notes.
  virtual std::string finish() = 0;
  // Returns the artifacts that were dropped so far. The list is complete after finish().
  virtual std::vector<DroppedArtifact> dropped() const = 0;
};

// Creates the sink for one run of a job. Returns null if state_dir is empty: artifacts are then ignored. `store_name`
// is the result of artifact_store_name(); if it is empty, every artifact is dropped. No file is created before the
// first artifact arrives; if that fails, a note is added. Files that exceed the quota are dropped by finish().
std::unique_ptr<RunArtifacts> make_run_artifacts(const std::string& state_dir, Id context,
                                                 const std::string& store_name, const std::string& job_key,
                                                 std::uint64_t max_bytes, ArtifactQuota quota = {});

}  // namespace mycojobs
