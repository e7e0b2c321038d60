// Writes an uploaded file to the disk of a coordinator (upload_folder.h). The file gets its name after its size and
// hash were verified, so that a crash leaves no file that a job can use. The functions can block on a disk. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "artifacts/artifact_file.h"
#include "artifacts/artifact_folder.h"
#include "base/fd.h"
#include "base/result.h"
#include "model/upload.h"

namespace mycojobs {

class UploadReceiver {
 public:
  // Errors: conflict (another client sends this upload now), unavailable (the disk). store_name: artifact_store_name().
  static Result<std::unique_ptr<UploadReceiver>> create(const ArtifactFolder&, const std::string& store_name,
                                                        const UploadReference&);
  // Deletes an incomplete file.
  ~UploadReceiver();
  UploadReceiver(const UploadReceiver&) = delete;
  UploadReceiver& operator=(const UploadReceiver&) = delete;

  // Errors: too_large (the file is longer than announced), unavailable.
  Result<void> write(std::string_view bytes);
  // Stores the file. Errors: invalid (its size or hash is wrong), unavailable. REQUIRES: called once, after the last
  // write().
  Result<void> finish();

 private:
  UploadReceiver(std::string folder, UploadReference reference, Fd lock)
      : folder_(std::move(folder)), reference_(std::move(reference)), lock_(std::move(lock)) {}
  std::string part_path() const { return folder_ + "/part"; }

  const std::string folder_;
  const UploadReference reference_;
  const Fd lock_;
  HashedFile file_;
  bool is_stored_ = false;
};

}  // namespace mycojobs
