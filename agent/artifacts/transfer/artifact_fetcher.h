// Fetches artifacts of other hosts for the clients of a server, into the caches of this host (artifact_cache.h). A file
// can be read while it is being received.
//
//   open() --> IncomingArtifact::read(), read(), ...     the client gets bytes as they arrive
//                |  TransferLoop: pieces through Redis
//                v
//   file in the spool --size and SHA-256 are verified--> file in the cache, for later requests
//
// A client never gets the last byte of a file before its hash was verified. A part without the last byte is readable
// only after that.
//
// A context has a connection to the store and a thread, until a fetch of another context a minute later. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/artifact_source.h"
#include "base/clock.h"
#include "base/result.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

// A file that is being received. All readers of a file share one transfer, which is cancelled when the last reader
// releases it. Thread-safe.
class IncomingArtifact {
 public:
  virtual ~IncomingArtifact() = default;
  // Returns at most max_bytes from the offset on, of a part that ends before `end`. Waits at most timeout_ms for the
  // first of these bytes. An empty text means that the time has passed. Errors: unavailable (the runner does not send,
  // or other files are being received), not_found (the runner does not have the file), io (this host cannot store the
  // file, or the content is not that of the record). REQUIRES: offset < end <= size of the file.
  virtual Result<std::string> read(std::uint64_t offset, std::uint64_t end, std::size_t max_bytes,
                                   std::uint32_t timeout_ms) = 0;
  // Waits at most timeout_ms until the file is complete. Returns whether it is complete. Errors: those of read().
  virtual Result<bool> wait_until_complete(std::uint32_t timeout_ms) = 0;
};

class ArtifactFetcher {
 public:
  struct Settings {
    std::string state_dir;
    ArtifactCache::Limits cache_limits;
    // Files that one actor can fetch at the same time, so that it leaves transfers for others
    // (TransferReceiver::kMaxTransfers).
    std::uint32_t max_actor_fetches = 2;
  };
  // stores and clock must outlive the fetcher. REQUIRES: state_dir is not empty.
  ArtifactFetcher(StoreFactory& stores, const Clock& clock, Settings settings,
                  std::shared_ptr<Metrics> metrics = no_metrics());
  ~ArtifactFetcher();
  ArtifactFetcher(const ArtifactFetcher&) = delete;
  ArtifactFetcher& operator=(const ArtifactFetcher&) = delete;

  // Starts to fetch a file, or joins a transfer of the same file. store_name: artifact_store_name() of the context.
  // Returns null if the actor fetches max_actor_fetches files, or all actors fetch 4: the caller waits and repeats the
  // call. Errors: those of the store.
  Result<std::shared_ptr<IncomingArtifact>> open(const RemoteArtifact&, const std::string& store_name, Id actor);

 private:
  class ContextTransfers;
  class SharedFile;
  class FetchCounter;
  class Target;
  struct FileKey {
    Id context = 0;
    std::string job_key, sha256;
    auto operator<=>(const FileKey&) const = default;
  };
  Result<std::shared_ptr<ContextTransfers>> find_transfers(Id context);
  void remove_unused(std::map<Id, std::shared_ptr<ContextTransfers>>& removed);

  StoreFactory& stores_;
  const Clock& clock_;
  const Settings settings_;
  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<FetchCounter> counter_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<Id, std::shared_ptr<ContextTransfers>> transfers_;
  std::map<FileKey, std::weak_ptr<SharedFile>> files_;
};

}  // namespace mycojobs
