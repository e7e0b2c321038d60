// Downloads files by links (file_link.h) over HTTPS, in the pieces of transfer_message.h. A file that arrives faster
// than its pieces are written has a bounded number of pieces in memory. Thread-safe.
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
  static constexpr std::size_t kMaxPieces =
      4;  // pieces of a download that were passed to on_piece and are not written yet

  // Called by threads of the downloads; must not block.
  struct Callbacks {
    std::function<void(DownloadNumber, std::uint64_t offset, std::string bytes)> on_piece;
    // The holder has sent the rest of the file, or an error: the last incomplete piece was dropped. Error not_found:
    // the link is not valid, although the holder was reached.
    std::function<void(DownloadNumber, Result<void>)> on_end;
  };
  // networks: those of addresses that may be connected to; null permits any address.
  LinkDownloads(Callbacks callbacks, std::shared_ptr<const Networks> networks, std::uint32_t connect_timeout_ms)
      : callbacks_(std::move(callbacks)), networks_(std::move(networks)), connect_timeout_ms_(connect_timeout_ms) {}
  ~LinkDownloads() { stop(); }
  LinkDownloads(const LinkDownloads&) = delete;
  LinkDownloads& operator=(const LinkDownloads&) = delete;

  // Downloads the file from the offset on. REQUIRES: the number was not used before; offset is a multiple of
  // kPieceBytes, and less than file_bytes.
  void start(DownloadNumber, const FileLink&, std::uint64_t file_bytes, std::uint64_t offset);
  void resume(DownloadNumber);  // a piece was written or dropped
  void cancel(DownloadNumber);  // callbacks may still be called until the download has ended
  void stop();                  // ends all downloads; waits at most about a second; no callback is called afterwards

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
