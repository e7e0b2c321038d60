// Fetches artifacts from the runner or the object storage that has them into files without a name, for commands on
// other hosts. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "artifacts/transfer/bucket_source.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "base/result.h"
#include "net/networks.h"
#include "store/store.h"

namespace mycojobs {

class ArtifactDownload {
 public:
  // Connects to the server of the context. folder: existing folder on the disk that has space for the received files.
  // Errors: denied (the Redis user may not request artifacts), and the errors of StoreFactory.
  // bucket: the object storage of this host, or null. link_networks: see TransferLoop::Settings.
  static Result<std::unique_ptr<ArtifactDownload>> open(StoreFactory&, Id context, const Clock&, std::string folder,
                                                        std::shared_ptr<const ArtifactBucket> bucket,
                                                        std::shared_ptr<const Networks> link_networks);
  ArtifactDownload(const ArtifactDownload&) = delete;
  ArtifactDownload& operator=(const ArtifactDownload&) = delete;

  // Returns the path of the received file (get_open_file_path()). Size and hash of the file were verified. The next
  // call or the destructor deletes the file. Errors: unavailable (the runner does not send), not_found (the runner does
  // not have the file), io.
  Result<std::string> fetch(const RemoteArtifact&);

 private:
  class Target;
  explicit ArtifactDownload(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  std::shared_ptr<Target> target_;  // the latest received file
  std::unique_ptr<Store> store_;
  std::unique_ptr<TransferLoop> loop_;
  std::optional<BucketSource> source_;
  std::optional<LoopThread<TransferLoop>> thread_;  // destroyed first, since the thread uses loop_ and store_
};

}  // namespace mycojobs
