// Id-mapped mounts: a job sees files of one owner as its own, whatever user id the job has.
#pragma once

#include <cstdint>
#include <string>

#include "sandbox/volume.h"

namespace mycojobs::sandbox {

// Creates a user namespace for MOUNT_ATTR_IDMAP. A mount with this mapping shows files of `files` as files of `job`,
// and stores new files of `job` as files of `files`. Files of all other owners stay reachable by their mode bits alone,
// see format_mapped_ids(). Returns a descriptor, or -errno.
int create_id_mapping(const FileOwner& files, const FileOwner& job);

// Returns the lines of /proc/PID/uid_map that show `files` as `job` and other ids unchanged, with two exceptions. Files
// of root are shown as files of `files`, which the job is not: id 0 of the host would need CAP_SETFCAP. Files that
// belong to `job` on disk have no id, since a mapping must be unambiguous; the kernel refuses writes to them. If both
// ids are equal, all ids are unchanged.
std::string format_mapped_ids(std::uint32_t files, std::uint32_t job);

}  // namespace mycojobs::sandbox
