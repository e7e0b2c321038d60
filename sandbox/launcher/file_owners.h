// The users to whom the files of jobs on the host belong.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "sandbox/launcher/id_map.h"
#include "sandbox/volume.h"

namespace mycojobs::sandbox {

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
