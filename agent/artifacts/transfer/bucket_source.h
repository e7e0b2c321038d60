// Fetches artifacts from the object storage (artifact_bucket.h) if the record of the job names the storage of this
// process. Fetches all other artifacts from the runners that store them. If the storage does not send a file, the file
// is fetched from its runner, which stores the file until retention. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "artifacts/bucket/artifact_bucket.h"
#include "artifacts/transfer/artifact_source.h"
#include "base/strands/strand_pool.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class BucketSource final : public ArtifactSource {
 public:
  // bucket: null if this process uses no object storage. `runners` must outlive this object.
  BucketSource(std::shared_ptr<const ArtifactBucket> bucket, ArtifactSource& runners,
               std::shared_ptr<Metrics> metrics = no_metrics())
      : bucket_(std::move(bucket)), runners_(runners), metrics_(std::move(metrics)) {}
  ~BucketSource() override { stop(); }
  // Ends the running downloads, and does not call their on_end afterwards. Fetches of `runners` may still end.
  void stop();

  FetchNumber fetch(const RemoteArtifact&, std::shared_ptr<FileTarget>, OnEnd on_end) override;
  void cancel(FetchNumber) override;

 private:
  static constexpr std::uint64_t kMaxDownloads = 4;  // at the same time
  // Set in the fetch numbers of this object, and not set in the numbers of `runners`.
  static constexpr FetchNumber kObjectBit = FetchNumber{1} << 63U;
  struct Fetch {
    std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
    FetchNumber runner_fetch = 0;  // number of the fetch from the runner; 0: not started
  };

  // Called at the end of a download. Fetches the file from its runner if the storage has not sent it.
  void on_downloaded(FetchNumber, const RemoteArtifact&, std::shared_ptr<FileTarget>, const OnEnd&, FetchEnd);
  // Returns the end of a fetch after the storage has failed and the fetch from the runner has ended.
  static FetchEnd combine_ends(const FetchEnd& bucket_end, FetchEnd runner_end);
  FetchEnd download(const RemoteArtifact&, const std::shared_ptr<FileTarget>&, const std::atomic<bool>& stop) const;

  const std::shared_ptr<const ArtifactBucket> bucket_;
  ArtifactSource& runners_;
  const std::shared_ptr<Metrics> metrics_;
  std::mutex mutex_;
  std::map<FetchNumber, Fetch>
      fetches_;                    // downloads, and the fetches from runners after failed downloads; guarded by mutex_
  std::uint64_t next_number_ = 1;  // guarded by mutex_
  StrandPool strands_;
};

}  // namespace mycojobs
