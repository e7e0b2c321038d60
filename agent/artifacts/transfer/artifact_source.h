// A place outside of this host that has artifacts: runners, through Redis (transfer_loop.h), and the object storage of
// the operator (artifacts/transfer/bucket_source.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "artifacts/artifact_file.h"
#include "artifacts/artifact_store.h"
#include "base/result.h"
#include "model/file_holder.h"
#include "model/records.h"

namespace mycojobs {

// A file that the record of a job lists and that is not on this host.
struct RemoteArtifact {
  Id context = 0;
  FileHolder holder = {};  // the agent that ran the job, or a coordinator
  std::string job_key;
  FileContent content;
  std::string label;  // "the artifact \"app\" of job \"build\"", for messages
  // The object storage that has the file according to the record, ArtifactBucket::url(); empty: the holder has it.
  std::string object_store = {};
  std::vector<std::string> store_names = {};  // artifact_store_names(); REQUIRED with object_store
};

// The place on this host for a received file. The functions can block on a disk. They are called one after another.
class FileTarget {
 public:
  virtual ~FileTarget() = default;
  // Returns the path at which the caller creates the file. The folder exists. If an earlier call has returned the same
  // path, the caller has deleted that file.
  virtual Result<std::string> create_path() = 0;
  // Called after the empty file was created. An error ends the fetch.
  virtual Result<void> on_created(const std::string& /*path*/) { return {}; }
  // Stores the complete file, whose size and hash were verified.
  virtual Result<void> store(const CompleteFile&) = 0;
};

enum class FetchStatus {
  received,      // the file was stored in its target
  away,          // the holder does not send now
  busy,          // other files are being received from any holder
  lost,          // the holder does not have the file
  damaged,       // the content is not that of the record
  failed,        // this host cannot store the file
  storage_away,  // the object storage does not send the file now
};
const char* to_word(FetchStatus);  // "received"; value of a label of metrics
struct FetchEnd {
  FetchStatus status = FetchStatus::received;
  std::string reason;  // for users; empty if the file was received
};

// Thread-safe.
class ArtifactSource {
 public:
  using FetchNumber = std::uint64_t;
  using OnEnd = std::function<void(FetchEnd)>;
  virtual ~ArtifactSource() = default;
  // Fetches a file. on_end is called once, by a thread of the source, and must not block.
  virtual FetchNumber fetch(const RemoteArtifact&, std::shared_ptr<FileTarget>, OnEnd on_end) = 0;
  // Drops a fetch. on_end may still be called if the fetch ends at the same time.
  virtual void cancel(FetchNumber) = 0;
};

}  // namespace mycojobs
