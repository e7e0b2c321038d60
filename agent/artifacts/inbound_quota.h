// Limits the size of the incoming/ folders of all contexts of a host (artifacts/local_artifact_store.h). The usage is
// computed from the names of the folders and files, which contain the sender and the final size of each file. Since no
// other state exists, the quota holds for all processes of the host and after a restart. The usage is computed when a
// sender reserves space, not for each piece. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "artifacts/artifact_store.h"
#include "base/fd.h"

namespace mycojobs {

class InboundQuota {
 public:
  InboundQuota(std::string state_dir, std::uint64_t max_bytes)
      : state_dir_(std::move(state_dir)), max_bytes_(max_bytes) {}

  static std::string folder_name(const InboundBundleId&);
  static std::string file_name(const FileContent&);  // Name of a complete file. Incomplete files have a suffix.

  std::uint64_t sender_limit() const { return max_bytes_ / 4; }  // Limit of one sender in bytes.
  // Checks that there is space for these files, and returns a lock that blocks other calls. The caller creates the
  // files before it releases the lock. REQUIRES: the files do not exist yet. Errors: too_large (the files exceed
  // sender_limit()) and unavailable (the quota has no space now), whose messages name the setting; unavailable also if
  // the lock is in use.
  Result<Fd> reserve_space(Id context, const InboundBundleId&, const std::vector<FileContent>&) const;
  // Deletes bundles that were not modified for an hour, also in contexts that are no longer served.
  void delete_expired() const;

 private:
  struct Usage {
    std::uint64_t total_bytes = 0, sender_bytes = 0;
    // Sum of the accounted file sizes of the bundle, without the minimum kMinAccountedBundleBytes.
    std::uint64_t bundle_bytes = 0;
  };
  Result<Usage> measure_usage(Id context, const InboundBundleId&) const;

  const std::string state_dir_;
  const std::uint64_t max_bytes_;
};

}  // namespace mycojobs
