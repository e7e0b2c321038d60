#include "artifacts/transfer/link_downloads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "artifacts/transfer/transfer_message.h"
#include "net/http_transfer.h"

namespace mycojobs {
namespace {

constexpr int kPartialContentStatus = 206, kNotFoundStatus = 404;
// A download ends if its rate is below kMinLinkBytesPerS for kMaxSlowLinkS. The other pieces are then requested through
// Redis. At the minimum rate, a piece takes 8 s, which is less than TransferReceiver::kSilenceMs.
constexpr std::uint32_t kMinLinkBytesPerS = 32U << 10, kMaxSlowLinkS = 5;

}  // namespace

// A running download. run() is called by a thread of the pool, the other functions by any thread.
class LinkDownloads::Download {
 public:
  Download(DownloadNumber number, FileLink link, std::uint64_t file_bytes, std::uint64_t offset)
      : number_(number), link_(std::move(link)), file_bytes_(file_bytes), offset_(offset) {}

  Result<void> run(const Callbacks& callbacks, const Networks* networks, std::uint32_t connect_timeout_ms) {
    HttpTransfer http;
    HttpTransfer::Request request;
    request.url = format_link_url(link_);
    request.headers = {"Range: bytes=" + std::to_string(offset_) + '-'};
    request.server_key_sha256 = link_.server_key_sha256;
    request.networks = networks;
    request.connect_timeout_ms = connect_timeout_ms;
    request.min_bytes_per_s = kMinLinkBytesPerS;
    request.max_slow_s = kMaxSlowLinkS;
    request.body_status = kPartialContentStatus;
    request.stop = &is_stopped_;
    request.on_body = [&](std::string_view bytes) { return add_bytes(bytes, callbacks); };
    MJ_TRY(answer, http.perform(request));
    if (answer.status != request.body_status)
      return fail(answer.status == kNotFoundStatus ? Code::not_found : Code::unavailable,
                  "the holder answers with status " + std::to_string(answer.status));
    if (offset_ < file_bytes_) return fail(Code::unavailable, "the holder has sent less than the rest of the file");
    return {};
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    if (unwritten_pieces_ > 0) --unwritten_pieces_;
    changed_.notify_all();
  }
  void stop() {
    is_stopped_ = true;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  bool is_stopped() const { return is_stopped_; }

 private:
  Result<void> add_bytes(std::string_view bytes, const Callbacks& callbacks) {
    while (!bytes.empty()) {
      if (offset_ >= file_bytes_) return fail(Code::unavailable, "the holder has sent more than the rest of the file");
      const std::uint64_t piece_bytes = get_piece_size(file_bytes_, offset_);
      const std::string_view part = bytes.substr(0, static_cast<std::size_t>(piece_bytes - piece_.size()));
      piece_.append(part);
      bytes.remove_prefix(part.size());
      if (piece_.size() < piece_bytes) continue;
      if (!wait_for_capacity()) return fail(Code::unavailable, "the download was cancelled");
      callbacks.on_piece(number_, offset_, std::exchange(piece_, {}));
      offset_ += kPieceBytes;
    }
    return {};
  }
  // Waits until a piece may be passed on, and counts the piece. Returns false if the download was stopped.
  bool wait_for_capacity() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_stopped_ || unwritten_pieces_ < kMaxPieces; });
    ++unwritten_pieces_;
    return !is_stopped_;
  }

  const DownloadNumber number_;
  const FileLink link_;
  const std::uint64_t file_bytes_;
  std::uint64_t offset_;  // offset of the current piece
  std::string piece_;     // received bytes of the current piece
  std::atomic<bool> is_stopped_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t unwritten_pieces_ = 0;  // guarded by mutex_
};

void LinkDownloads::start(DownloadNumber number, const FileLink& link, std::uint64_t file_bytes, std::uint64_t offset) {
  auto download = std::make_shared<Download>(number, link, file_bytes, offset);
  {
    const std::lock_guard lock(mutex_);
    downloads_[number] = download;
  }
  (void)strands_.post({"link " + std::to_string(number), "links"}, [this, number, download = std::move(download)] {
    auto result = download->is_stopped() ? fail(Code::unavailable, "the download was cancelled")
                                         : download->run(callbacks_, networks_.get(), connect_timeout_ms_);
    {
      const std::lock_guard lock(mutex_);
      downloads_.erase(number);
    }
    if (!download->is_stopped()) callbacks_.on_end(number, std::move(result));
  });
  (void)strands_.start_missing_threads();
}

std::shared_ptr<LinkDownloads::Download> LinkDownloads::find(DownloadNumber number) {
  const std::lock_guard lock(mutex_);
  const auto download = downloads_.find(number);
  return download == downloads_.end() ? nullptr : download->second;
}

void LinkDownloads::resume(DownloadNumber number) {
  if (const auto download = find(number)) download->resume();
}

void LinkDownloads::cancel(DownloadNumber number) {
  if (const auto download = find(number)) download->stop();
}

void LinkDownloads::stop() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : downloads_) entry.second->stop();
  }
  strands_.stop();
}

}  // namespace mycojobs
