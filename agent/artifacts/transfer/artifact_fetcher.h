// Fetches artifacts from the runners of other hosts into the caches of this host (artifact_cache.h). Clients can read a
// file while it is being received.
//
//   open() --> IncomingArtifact::read(), read(), ...     the client gets bytes as they arrive
//                |  TransferLoop: pieces through Redis
//                v
//   file in the spool --size and SHA-256 are verified--> file in the cache, for later requests
//
// No client receives wrong content unnoticed: the last byte of a file can be read only after the hash of the file was
// verified. A range that does not contain the last byte can be read only after the verification, too.
//
// Each context in use has a connection to the store and a thread. open() ends those of other contexts that were not
// used for a minute. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/artifact_source.h"
#include "artifacts/transfer/lingering_fetches.h"
#include "base/clock.h"
#include "base/result.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class ArtifactBucket;
class Networks;

// A file that is being received. All readers of a file share one transfer. It is cancelled some time after the last
// reader has released it (Settings::linger), so that a client can continue after a lost connection. Thread-safe.
class IncomingArtifact {
 public:
  virtual ~IncomingArtifact() = default;
  // Reads a piece of the range that the client has requested, which ends before range_end. Returns at most max_bytes
  // from the offset on, and waits at most timeout_ms for the first byte. An empty text means a timeout. Errors:
  // unavailable (the runner does not send, or other files are being received), not_found (the runner does not have the
  // file), io (this host cannot store the file, or the content does not have the recorded hash).
  // REQUIRES: offset < range_end <= size of the file.
  virtual Result<std::string> read(std::uint64_t offset, std::uint64_t range_end, std::size_t max_bytes,
                                   std::uint32_t timeout_ms) = 0;
  // Waits at most timeout_ms until the file is complete. Returns whether it is complete. Errors: those of read().
  virtual Result<bool> wait_until_complete(std::uint32_t timeout_ms) = 0;
};

class ArtifactFetcher {
 public:
  struct Settings {
    std::string state_dir;
    ArtifactCache::Limits cache_limits;
    // Maximum number of files that one actor fetches at the same time. A fetcher fetches 4 files at a time, so one
    // actor cannot block the fetches of other actors.
    std::uint32_t max_fetches_per_actor = 2;
    std::shared_ptr<const ArtifactBucket> bucket = nullptr;   // null: this process uses no object storage
    std::shared_ptr<const Networks> link_networks = nullptr;  // see TransferLoop::Settings
    // Time for which a transfer continues without a reader. It ends sooner if another file needs its place.
    std::chrono::milliseconds linger{60000};
  };
  // REQUIRES: stores and clock outlive the fetcher; state_dir is not empty.
  ArtifactFetcher(StoreFactory& stores, const Clock& clock, Settings settings,
                  std::shared_ptr<Metrics> metrics = no_metrics());
  ~ArtifactFetcher();
  ArtifactFetcher(const ArtifactFetcher&) = delete;
  ArtifactFetcher& operator=(const ArtifactFetcher&) = delete;

  // Starts to fetch a file, or joins a running transfer of the same file. store_name: artifact_store_name() of the
  // context. Returns null if the actor already fetches max_fetches_per_actor files, or all actors together fetch 4; the
  // caller may repeat the call later. Errors: those of the store.
  Result<std::shared_ptr<IncomingArtifact>> open(const RemoteArtifact&, const std::string& store_name, Id actor);

 private:
  class ContextTransfers;
  class SharedFile;
  class Reader;
  class FetchCounter;
  class FetchTarget;
  struct FileKey {
    Id context = 0;
    std::string job_key, sha256;
    auto operator<=>(const FileKey&) const = default;
  };
  Result<std::shared_ptr<ContextTransfers>> get_or_create_transfers(Id context);
  bool try_add_fetch(Id actor);
  // Moves the transfers of idle contexts into `removed`. REQUIRES: the caller holds mutex_, and destroys `removed`
  // after it has released mutex_, because the destructor waits for the end of a thread.
  void remove_idle(std::map<Id, std::shared_ptr<ContextTransfers>>& removed);

  StoreFactory& stores_;
  const Clock& clock_;
  const Settings settings_;
  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<FetchCounter> counter_;
  const std::shared_ptr<LingeringFetches> lingering_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<Id, std::shared_ptr<ContextTransfers>> transfers_;
  std::map<FileKey, std::weak_ptr<SharedFile>> files_;  // expired if no reader uses the file
};

}  // namespace mycojobs
