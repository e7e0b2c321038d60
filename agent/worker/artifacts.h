// Files that jobs leave, kept on this host: <state_dir>/contexts/<context>/
//
//   objects/<sha256>                          the bytes, once for all jobs that left the same
//   jobs/<store>/<caller>.<job>/<sha256>      a hard link for each job that has it: an object with one name belongs to
//                                             nobody
//   spool/<run>/, spool/<run>.lock            what a run has left so far; the lock is held as long as the run goes on
//   usage-<store>, usage-<store>.lock         what the artifacts of each caller take (worker/artifact_usage.h)
//   lock                                      shared: objects become a job's; exclusive: something is taken away
//
// As long as the job's record: worker/artifact_sweep.h. <store>: several stores may share a folder, and the record of a
// job in one says nothing about the job of that name in another (artifact_store_name()). Text is kept without the
// secrets of its context. Folders are 0700, files 0600. Nothing is synced: after a loss of power a file may be damaged,
// which its hash tells whoever reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "domain/artifact_list.h"
#include "domain/redactor.h"
#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"
#include "worker/artifact_file.h"
#include "worker/artifact_usage.h"

namespace mycojobs {

inline constexpr const char* kArtifactsKey = "mj:artifacts";  // hash, in the store: a field for each of its store_names

std::string object_path(const std::string& state_dir, Id context, const std::string& sha256);

// The folders on this host with the files that were kept for the job: one for each name of the store.
std::vector<std::string> artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names);
// The artifacts that a record's field names; unreadable or empty text names none. `path` is a file in one of the job's
// own folders, whether it exists or not: whoever may write the record gets no file of another job by its hash.
std::vector<StoredArtifact> read_artifacts(const std::string& json, const std::vector<std::string>& folders);

// A whole file becomes an object, and the job's under the lock of the folder (worker/artifact_folder.h).
Result<void> keep_artifact(const WholeFile&, const std::string& object, const std::string& of_the_job);

// The name of this store among those that keep artifacts on a host: made up by whoever comes first, and kept in the
// store. Error: as of Store::load.
Result<std::string> artifact_store_name(RecordStore&, Id context);
// All names that the store has had: who comes first at the same time as another makes up two.
Result<std::vector<std::string>> artifact_store_names(RecordStore&, Id context);

// What one run leaves, on the disk: each call may wait for it (worker/artifact_queue.h). One that goes without finish()
// leaves nothing, and so does an agent that is killed.
class RunArtifacts : public ArtifactSink {
 public:
  // Before the first byte; null: there are no secrets.
  virtual void keep_out(std::shared_ptr<const Redactor>) = 0;
  // Lines for the job's log, since the last call: what was not kept, and why.
  virtual std::vector<std::string> take_notes() = 0;
  // The run has ended: JSON object name -> {sha256, bytes, text, executable if it is}; "" if there are none. What is
  // not whole is dropped. Waits for others who have the folder's lock. May have notes to take.
  virtual std::string finish() = 0;
  // The files that were not kept so far: those of finish(), too, once it has been called.
  virtual std::vector<DroppedArtifact> dropped() const = 0;
};

// A sink for one run of a job. state_dir empty: null, artifacts are passed over. store_name: artifact_store_name();
// empty: it is unknown, and every artifact is dropped.
// Makes no file before the first artifact comes; one that cannot be made has a note. Files that do not fit into the
// quota are dropped when the run has ended.
std::unique_ptr<RunArtifacts> make_run_artifacts(const std::string& state_dir, Id context,
                                                 const std::string& store_name, const std::string& job_key,
                                                 std::uint64_t max_bytes, ArtifactQuota quota = {});

}  // namespace mycojobs
