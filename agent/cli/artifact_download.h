// Fetches artifacts from the runner that has them into a temporary folder, for commands on other hosts. Not
// thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "artifacts/transfer/transfer_loop.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "base/result.h"
#include "store/store.h"

namespace mycojobs {

class ArtifactDownload {
 public:
  // Creates the folder, and connects to the server of the context. Errors: io (the folder), and those of the stores.
  static Result<std::unique_ptr<ArtifactDownload>> open(StoreFactory&, Id context, const Clock&);
  ~ArtifactDownload();
  ArtifactDownload(const ArtifactDownload&) = delete;
  ArtifactDownload& operator=(const ArtifactDownload&) = delete;

  // Returns the path of the file, whose size and hash were verified. The next call, or the destructor, deletes it.
  // Errors: unavailable (the runner does not send), not_found (the runner does not have the file), io.
  Result<std::string> fetch(const RemoteArtifact&);

 private:
  explicit ArtifactDownload(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TransferLoop> loop_;
  std::optional<LoopThread<TransferLoop>> thread_;  // destroyed first
};

}  // namespace mycojobs
