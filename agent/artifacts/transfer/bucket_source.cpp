#include "artifacts/transfer/bucket_source.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "artifacts/transfer/transfer_receiver.h"

namespace mycojobs {
namespace {

constexpr int kMaxDownloadAttempts = 6;
constexpr std::uint64_t kFirstDownloadPauseMs = 250;  // doubles after each attempt; the pauses take 8 s together
constexpr int kMaxDamagedDownloads = 3;
// No attempt begins after this time, since the job that needs the file occupies a slot during the attempts.
constexpr std::chrono::seconds kMaxDownloadRetryTime{30};
// A download may take kMinDownloadTime, and additionally one second for each kMinDownloadBytesPerS bytes of the file.
constexpr std::chrono::seconds kMinDownloadTime{60};
constexpr std::uint64_t kMinDownloadBytesPerS = 64U << 10;

// The result of one attempt to download an object.
struct DownloadResult {
  Result<void> result;
  bool is_disk_error = false;  // true if the disk of this host has failed, and not the storage
};

DownloadResult download_once(const ArtifactBucket& bucket, const ArtifactBucket::Key& key, const FileContent& content,
                             const std::shared_ptr<FileTarget>& target, const std::atomic<bool>& stop,
                             std::uint64_t& received_bytes) {
  ReceivedFile file(content, target);
  bool has_disk_error = false;
  std::uint64_t bytes = 0;
  const auto deadline =
      std::chrono::steady_clock::now() + kMinDownloadTime + std::chrono::seconds(content.bytes / kMinDownloadBytesPerS);
  auto result = bucket.download(
      key,
      [&](std::string_view piece) -> Result<void> {
        if (std::chrono::steady_clock::now() > deadline)
          return fail(Code::unavailable, "the object arrives with less than 64 KiB/s");
        bytes += piece.size();
        received_bytes += piece.size();
        if (bytes > content.bytes) return fail(Code::conflict, "the object is larger than in the record");
        auto written = file.write(piece);
        has_disk_error = !written;
        return written;
      },
      &stop);
  if (!result) return {std::move(result), has_disk_error};
  if (bytes == 0) result = file.write("");  // creates the file
  if (result) result = file.finish();
  has_disk_error = !result && result.error().code != Code::conflict;
  return {std::move(result), has_disk_error};
}

void wait_unless_stopped(std::uint64_t pause_ms, const std::atomic<bool>& stop) {
  constexpr std::uint64_t kStepMs = 50;
  for (std::uint64_t waited_ms = 0; waited_ms < pause_ms && !stop; waited_ms += kStepMs)
    std::this_thread::sleep_for(std::chrono::milliseconds(kStepMs));
}

}  // namespace

void BucketSource::stop() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : fetches_) *entry.second.stop = true;
  }
  strands_.stop();
}

ArtifactSource::FetchNumber BucketSource::fetch(const RemoteArtifact& artifact, std::shared_ptr<FileTarget> target,
                                                OnEnd on_end) {
  if (bucket_ == nullptr || artifact.object_store != bucket_->url())
    return runners_.fetch(artifact, std::move(target), std::move(on_end));
  FetchNumber number = 0;
  std::shared_ptr<std::atomic<bool>> stop;
  {
    const std::lock_guard lock(mutex_);
    number = kObjectBit | next_number_++;
    stop = fetches_[number].stop;
  }
  const std::string strand = "object " + std::to_string(number % kMaxDownloads);
  (void)strands_.post({strand, "objects"},
                      [this, number, artifact, target = std::move(target), on_end = std::move(on_end), stop]() mutable {
                        FetchEnd fetch_end = download(artifact, target, *stop);
                        on_downloaded(number, artifact, std::move(target), on_end, std::move(fetch_end));
                      });
  (void)strands_.start_missing_threads();
  return number;
}

void BucketSource::on_downloaded(FetchNumber number, const RemoteArtifact& artifact, std::shared_ptr<FileTarget> target,
                                 const OnEnd& on_end, FetchEnd bucket_end) {
  const bool is_failed_by_storage = bucket_end.status == FetchStatus::lost ||
                                    bucket_end.status == FetchStatus::damaged ||
                                    bucket_end.status == FetchStatus::storage_away;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = fetches_.find(number);
    if (is_failed_by_storage && artifact.holder.is_known() && !*entry->second.stop) {
      // mutex_ is locked until runner_fetch is set: otherwise cancel() could miss the fetch. fetch() does not block.
      entry->second.runner_fetch =
          runners_.fetch(artifact, std::move(target), [this, number, on_end, bucket_end](FetchEnd runner_end) {
            {
              const std::lock_guard guard(mutex_);
              fetches_.erase(number);
            }
            on_end(combine_ends(bucket_end, std::move(runner_end)));
          });
      return;
    }
    fetches_.erase(entry);
  }
  target.reset();  // here and not in on_end, since the destruction can block on a disk
  on_end(std::move(bucket_end));
}

// The status is `lost` only if neither the storage nor the runner has the file.
FetchEnd BucketSource::combine_ends(const FetchEnd& bucket_end, FetchEnd runner_end) {
  const bool is_final = runner_end.status == FetchStatus::received || runner_end.status == FetchStatus::failed ||
                        runner_end.status == FetchStatus::busy;
  if (is_final) return runner_end;
  runner_end.reason = bucket_end.reason + "; " + runner_end.reason;
  if (bucket_end.status == FetchStatus::storage_away) runner_end.status = FetchStatus::storage_away;
  return runner_end;
}

void BucketSource::cancel(FetchNumber number) {
  if ((number & kObjectBit) == 0) return runners_.cancel(number);
  FetchNumber runner_fetch = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = fetches_.find(number);
    if (entry == fetches_.end()) return;
    *entry->second.stop = true;
    runner_fetch = entry->second.runner_fetch;
    if (runner_fetch != 0) fetches_.erase(entry);  // on_end may not be called any more
  }
  if (runner_fetch != 0) runners_.cancel(runner_fetch);
}

// Tries all names of the database in turn, since a database has several names if two agents have created a name at the
// same time.
FetchEnd BucketSource::download(const RemoteArtifact& artifact, const std::shared_ptr<FileTarget>& target,
                                const std::atomic<bool>& stop) const {
  std::uint64_t received_bytes = 0, pause_ms = kFirstDownloadPauseMs;
  const auto retry_end = std::chrono::steady_clock::now() + kMaxDownloadRetryTime;
  int damaged = 0;
  std::size_t name_index = 0;
  FetchEnd fetch_end{FetchStatus::lost, bucket_->url() + " does not have it any more"};
  for (int attempt = 0; attempt < kMaxDownloadAttempts && name_index < artifact.store_names.size() && !stop;) {
    const ArtifactBucket::Key key{
        {artifact.store_names[name_index], artifact.context}, artifact.job_key, artifact.content.sha256};
    auto [result, is_disk_error] = download_once(*bucket_, key, artifact.content, target, stop, received_bytes);
    if (result) {
      fetch_end = {FetchStatus::received, {}};
      break;
    }
    Error& error = result.error();
    if (is_disk_error) {
      fetch_end = {FetchStatus::failed, std::move(error.message)};
      break;
    }
    if (error.code == Code::not_found) {
      ++name_index;
      continue;
    }
    const bool is_damaged = error.code == Code::conflict;
    fetch_end = {is_damaged ? FetchStatus::damaged : FetchStatus::storage_away,
                 (is_damaged ? bucket_->url() + ": " : "") + std::move(error.message)};
    const bool is_temporary = error.code == Code::unavailable || (is_damaged && ++damaged < kMaxDamagedDownloads);
    if (!is_temporary || std::chrono::steady_clock::now() >= retry_end) break;
    wait_unless_stopped(pause_ms, stop);
    pause_ms *= 2;
    ++attempt;
  }
  metrics_->add(Metric::transfer_bytes, {artifact.context, "downloaded"}, static_cast<double>(received_bytes));
  metrics_->add(Metric::transfers, {artifact.context, to_word(fetch_end.status)});
  return fetch_end;
}

}  // namespace mycojobs
