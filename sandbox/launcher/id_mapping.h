// Id-mapped mounts: a job sees files of one owner as its own, whatever user id the job has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/launcher/id_map.h"
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

// The owners of the files of each context, and the checks of owners. Immutable.
class FileOwners {
 public:
  FileOwners() = default;
  // Error invalid: an owner that no job may have.
  static Result<FileOwners> make(std::vector<ContextFiles>, const IdRange&, UsedIds = {});

  // Returns the owner of files that jobs of the context create below fs.write. Error invalid: the context has none, or
  // its default belongs to another user of the host.
  Result<FileOwner> find_owner(ContextId) const;
  // Returns the ids of runs with folders if these runs have no id of their own.
  std::optional<FileOwner> find_fixed_owner(ContextId) const;
  // Error invalid: jobs may not act as the owner of this volume.
  Result<void> check_volume(const Volume&) const;
  // Returns the ids on the host of a job with this id in its user namespace.
  FileOwner get_job_ids(ContextId, std::uint32_t uid) const;

 private:
  Result<void> check_owner(const FileOwner&) const;
  bool has_ids() const { return ids_.has_id_per_job(); }

  std::vector<ContextFiles> files_;
  IdRange ids_;
  UsedIds used_ids_;
};

}  // namespace mycojobs::sandbox
