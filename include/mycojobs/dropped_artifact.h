// A file that a job left in its artifacts folder and that was not kept.
#pragma once

#include <cstdint>
#include <string>

namespace mycojobs {

enum class DropReason : std::uint8_t {
  bytes,          // the artifacts of a job together are over job.max_artifact_bytes
  files,          // more files, or names in one folder, than a job may leave
  folders,        // too many folders deep
  name,           // its name is no artifact's name
  link,           // a symbolic link, or a file with a second name
  special,        // neither a file nor a folder: a FIFO, a socket
  unreadable,     // the job's user cannot read it to its end
  incomplete,     // the run ended while it was handed over
  disk,           // the host of the agent cannot store it
  caller_quota,   // the artifacts of its caller on the host are over quota.caller_artifact_bytes
  context_quota,  // those of all callers of the context are over quota.context_artifact_bytes
};

struct DroppedArtifact {
  std::string name;  // empty: the artifacts folder itself
  DropReason reason = DropReason::bytes;
  std::uint64_t limit = 0;  // the limit that was exceeded; 0: none
  bool operator==(const DroppedArtifact&) const = default;
};

}  // namespace mycojobs
