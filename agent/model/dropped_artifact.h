// A file in a job's artifacts folder that was not stored, with the reason.
#pragma once

#include <cstdint>
#include <string>

namespace mycojobs {

enum class DropReason : std::uint8_t {
  bytes,          // the artifacts of a job together exceed job.max_artifact_bytes
  files,          // more files, or names in one folder, than a job may store
  folders,        // the folders are nested too deeply
  name,           // the name is not a valid artifact name
  link,           // a symbolic link, or a file with several hard links
  special,        // neither a file nor a folder: a FIFO, a socket
  unreadable,     // the job's user cannot read the whole file
  incomplete,     // the run ended during the transfer of the file
  disk,           // the agent's host cannot store the file
  caller_quota,   // the caller's artifacts on the host exceed quota.caller_artifact_bytes
  context_quota,  // the artifacts of all callers of the context exceed quota.context_artifact_bytes
};

struct DroppedArtifact {
  std::string name;  // empty for the artifacts folder itself
  DropReason reason = DropReason::bytes;
  std::uint64_t limit = 0;  // the limit that was exceeded, or 0 if the reason is not a limit
  bool operator==(const DroppedArtifact&) const = default;
};

}  // namespace mycojobs
