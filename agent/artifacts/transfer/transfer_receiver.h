// Receives files (transfer_message.h): requests the pieces of a file from its holder, verifies the hash of the file,
// and stores the file in its target. Uses neither threads nor clocks: all times are arguments, in ms. Not thread-safe.
//
//   fetch() --waiting--> a free transfer --pieces--> strand of the disk --complete--> FileTarget --on_end(received)
//
// A transfer ends with the status `away` if the holder is not connected, or if no piece arrives for kSilenceMs. A
// transfer ends with the status `busy` if it waits for other transfers for kSilenceMs. A file with a wrong hash is
// requested a second time.
//
// For a file of at least kMinLinkBytes, a link is requested first, and the rest of the file is downloaded over HTTPS.
// Until the first piece of the download arrives, a few pieces are requested one after another. If the download ends
// early, the pieces after the last complete piece are requested:
//
//   requested --link--> connecting --first piece--> streaming --end of the download--> none
//       \-------------------- no link, time-out, error -------------------------------^
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "artifacts/transfer/artifact_source.h"
#include "artifacts/transfer/file_link.h"
#include "artifacts/transfer/incoming_transfer.h"
#include "base/result.h"

namespace mycojobs {

// Writes the file of a transfer to the disk. The functions block, so they are called on a strand of the disk.
class ReceivedFile {
 public:
  ReceivedFile(FileContent content, std::shared_ptr<FileTarget> target)
      : content_(std::move(content)), target_(std::move(target)) {}
  ~ReceivedFile();
  ReceivedFile(const ReceivedFile&) = delete;
  ReceivedFile& operator=(const ReceivedFile&) = delete;
  Result<void> write(std::string_view bytes);
  // Verifies size and hash, and stores the file in its target. Error conflict: size or hash are wrong.
  Result<void> finish();

 private:
  FileContent content_;
  std::shared_ptr<FileTarget> target_;
  std::unique_ptr<HashedFile> file_;  // null before the first write()
  bool is_stored_ = false;
};

class TransferReceiver {
 public:
  static constexpr std::size_t kMaxTransfers = 4;  // at the same time
  static constexpr std::uint64_t kSilenceMs = 15000;
  static constexpr std::uint64_t kMinLinkBytes = 1U << 20;
  static constexpr std::uint64_t kLinkPauseMs = 60000;  // time without links after a failed connection to a holder
  static constexpr std::uint64_t kMaxPiecesBeforeDownload = 8;  // requested before the first piece of a download
  static constexpr std::uint32_t kMaxLinksOfFile = 3;  // first link, and links for downloads that have ended early

  using FetchNumber = ArtifactSource::FetchNumber;
  using DownloadNumber = std::uint64_t;
  struct Callbacks {
    // Publishes a request for a piece. Returns the number of receivers. Error unavailable: the server does not answer.
    std::function<Result<std::uint64_t>(const RemoteArtifact&, const std::string& transfer_id, std::uint64_t offset)>
        request;
    // Executes a function on the strand of the context's disk, and passes the result to on_disk_result().
    std::function<void(Id context, FetchNumber, std::function<Result<void>()>)> run_on_disk;
    // Returns whether this process is subscribed to the channel on which the replies for the context arrive.
    std::function<bool(Id context)> is_subscribed;
    std::function<void(Id context, std::uint64_t bytes)> count_bytes = [](Id, std::uint64_t) {};
    std::function<void(Id context, FetchStatus)> count_end = [](Id, FetchStatus) {};
    // Publishes a request for a link. If null, no file is downloaded over HTTPS, and the following functions are not
    // called.
    std::function<void(const RemoteArtifact&, const std::string& transfer_id)> request_link = nullptr;
    // Downloads the file from the offset on, and passes the pieces to on_download_piece() and the end to
    // on_download_end().
    std::function<void(DownloadNumber, const FileLink&, std::uint64_t file_bytes, std::uint64_t offset)>
        start_download = nullptr;
    std::function<void(DownloadNumber)> resume_download = nullptr;  // a piece was written or dropped
    std::function<void(DownloadNumber)> cancel_download = nullptr;
    // Reports that the holder was not reached over HTTPS, or has sent nothing. No link is requested from this holder
    // for kLinkPauseMs.
    std::function<void(const RemoteArtifact&, const Error&)> on_link_failed = [](const RemoteArtifact&, const Error&) {
    };
    std::function<void(Id context, std::uint64_t bytes)> count_downloaded_bytes = [](Id, std::uint64_t) {};
  };
  // max_file_pieces: maximum number of pieces of a file that are requested and not written yet.
  explicit TransferReceiver(Callbacks callbacks, std::size_t max_file_pieces = IncomingTransfer::kMaxPieces,
                            LinkTimes link_times = {})
      : callbacks_(std::move(callbacks)), max_file_pieces_(max_file_pieces), link_times_(link_times) {}

  void fetch(FetchNumber, RemoteArtifact, std::shared_ptr<FileTarget>, ArtifactSource::OnEnd, std::uint64_t now_ms);
  void cancel(FetchNumber);
  void on_reply(std::string_view message, std::uint64_t now_ms);
  void on_download_piece(DownloadNumber, std::uint64_t offset, std::string bytes, std::uint64_t now_ms);
  void on_download_end(DownloadNumber, const Result<void>&, std::uint64_t now_ms);
  // Receives the results of run_on_disk, in the order of the calls.
  void on_disk_result(FetchNumber, Result<void>, std::uint64_t now_ms);
  // Starts transfers and sends requests. Returns the time in ms until the next call is due.
  std::uint64_t run(std::uint64_t now_ms);

 private:
  enum class LinkState { none, wanted, requested, connecting, streaming };
  struct Transfer {
    FetchNumber number = 0;
    RemoteArtifact artifact;
    std::shared_ptr<FileTarget> target;
    ArtifactSource::OnEnd on_end;
    std::uint64_t queued_ms = 0;
    std::string id;  // random and different for each attempt; empty while the transfer waits
    IncomingTransfer pieces{0, 0};
    std::shared_ptr<ReceivedFile> file;
    bool is_second_attempt = false;
    LinkState link_state = LinkState::none;
    std::uint64_t link_deadline_ms = 0;  // time-out in the states requested and connecting
    std::uint64_t link_offset = 0;       // offset of the next piece when the link was requested
    std::uint32_t link_count = 0;        // number of requested links
    DownloadNumber download = 0;         // 0: none
    bool has_downloaded = false;         // the current download has sent a piece
  };
  void start(Transfer&, std::uint64_t now_ms);
  // Returns false if the transfer has ended.
  bool send_requests(Transfer&, std::uint64_t now_ms);
  void write_pieces(Transfer&);
  void request_link(Transfer&, std::uint64_t now_ms);
  void on_link(Transfer&, const std::optional<FileLink>&, std::uint64_t now_ms);
  // Continues without a link if link_deadline_ms has passed.
  void end_late_link(Transfer&, std::uint64_t now_ms);
  // Does not request links from the holder of the transfer for kLinkPauseMs.
  void pause_links(const Transfer&, const Error&, std::uint64_t now_ms);
  // Returns the transfer with this download, or null.
  Transfer* find_download(DownloadNumber);
  bool is_link_paused(const Transfer&, std::uint64_t now_ms);
  void end(FetchNumber, FetchEnd);
  std::string describe_silence(const Transfer&) const;

  Callbacks callbacks_;
  const std::size_t max_file_pieces_;
  const LinkTimes link_times_;
  std::map<FetchNumber, Transfer> active_;
  std::deque<Transfer> waiting_;
  DownloadNumber last_download_ = 0;
  // Ends of the pauses of pause_links(), by context and name of the holder.
  std::map<std::pair<Id, std::string>, std::uint64_t> link_pauses_;
};

}  // namespace mycojobs
