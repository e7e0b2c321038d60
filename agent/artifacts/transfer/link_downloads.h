// Downloads files over HTTPS by links (file_link.h), and passes them on in pieces of kPieceBytes (transfer_message.h).
// A download pauses while kMaxPieces pieces are not written, so that a slow disk does not fill the memory. Thread-safe.
//
//   start() --> on_piece(), on_piece(), ... --> on_end()
//                  resume() after each piece was written
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "artifacts/transfer/file_link.h"
#include "base/result.h"
#include "base/strands/strand_pool.h"
#include "net/networks.h"

namespace mycojobs {

class LinkDownloads {
 public:
  using DownloadNumber = std::uint64_t;
  static constexpr std::size_t kMaxPieces = 4;  // unwritten pieces of a download that were passed to on_piece

  // Called by threads of the downloads; must not block.
  struct Callbacks {
    std::function<void(DownloadNumber, std::uint64_t offset, std::string bytes)> on_piece;
    // Called at the end of a download: after the last piece, or with an error, in which case the incomplete last piece
    // is dropped. Error not_found: the holder was reached, and has rejected the link.
    std::function<void(DownloadNumber, Result<void>)> on_end;
  };
  // networks: networks of the permitted addresses; null permits any address.
  LinkDownloads(Callbacks callbacks, std::shared_ptr<const Networks> networks, std::uint32_t connect_timeout_ms)
      : callbacks_(std::move(callbacks)), networks_(std::move(networks)), connect_timeout_ms_(connect_timeout_ms) {}
  ~LinkDownloads() { stop(); }
  LinkDownloads(const LinkDownloads&) = delete;
  LinkDownloads& operator=(const LinkDownloads&) = delete;

  // Downloads the file from the offset on. REQUIRES: the number was not used before; offset is a multiple of
  // kPieceBytes, and less than file_bytes.
  void start(DownloadNumber, const FileLink&, std::uint64_t file_bytes, std::uint64_t offset);
  // Reports that a piece was written or dropped, so that the download can pass on another piece.
  void resume(DownloadNumber);
  // Cancels a download. Callbacks may still be called until the download has ended.
  void cancel(DownloadNumber);
  // Ends all downloads, which takes about a second at most. Callbacks are not called afterwards.
  void stop();

 private:
  class Download;
  std::shared_ptr<Download> find(DownloadNumber);

  const Callbacks callbacks_;
  const std::shared_ptr<const Networks> networks_;
  const std::uint32_t connect_timeout_ms_;
  std::mutex mutex_;
  std::map<DownloadNumber, std::shared_ptr<Download>> downloads_;  // guarded by mutex_
  StrandPool strands_;
};

}  // namespace mycojobs
