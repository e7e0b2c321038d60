// Fetches artifacts from the object storage (artifact_bucket.h) if their record says that they are there and this
// process uses the same storage, and all other artifacts from the runners that have them. Thread-safe.
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
  // Ends the running downloads. on_end is not called after it returns.
  void stop();

  FetchNumber fetch(const RemoteArtifact&, std::shared_ptr<FileTarget>, OnEnd on_end) override;
  void cancel(FetchNumber) override;

 private:
  static constexpr std::uint64_t kMaxDownloads = 4;  // at the same time
  // Numbers of this object have this bit; those of `runners` do not.
  static constexpr FetchNumber kObjectBit = FetchNumber{1} << 63U;
  using StopFlag = std::shared_ptr<std::atomic<bool>>;

  FetchEnd download(const RemoteArtifact&, const std::shared_ptr<FileTarget>&, const std::atomic<bool>& stop) const;

  const std::shared_ptr<const ArtifactBucket> bucket_;
  ArtifactSource& runners_;
  const std::shared_ptr<Metrics> metrics_;
  std::mutex mutex_;
  std::map<FetchNumber, StopFlag> stop_flags_;  // of all downloads that have not ended; guarded by mutex_
  std::uint64_t next_number_ = 1;               // guarded by mutex_
  StrandPool strands_;
};

}  // namespace mycojobs
