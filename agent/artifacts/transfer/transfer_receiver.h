// The receiver's side of transfers (transfer_message.h): requests files from the runners that have them, verifies them
// and passes them to their targets. Uses no thread and no clock: all times are arguments, in ms. Not thread-safe.
//
//   fetch() --waiting--> a free transfer --pieces--> strand of the disk --complete--> FileTarget --on_end(received)
//
// A transfer ends as `away` if its holder is not connected, or if no piece arrives for kSilenceMs, and as `busy` if it
// waits longer for other transfers. A file with a wrong hash is requested again once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "artifacts/transfer/artifact_source.h"
#include "artifacts/transfer/incoming_transfer.h"
#include "base/result.h"

namespace mycojobs {

// The file of a transfer. Its functions are called on a strand of the disk.
class ReceivedFile {
 public:
  ReceivedFile(FileContent content, std::shared_ptr<FileTarget> target)
      : content_(std::move(content)), target_(std::move(target)) {}
  ~ReceivedFile();
  ReceivedFile(const ReceivedFile&) = delete;
  ReceivedFile& operator=(const ReceivedFile&) = delete;
  Result<void> write(std::string_view bytes);
  // Verifies size and hash, and stores the file in its target. Error conflict: the content is wrong.
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

  using FetchNumber = ArtifactSource::FetchNumber;
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
  };
  // max_file_pieces: maximum number of pieces of a file that are requested and not yet written.
  explicit TransferReceiver(Callbacks callbacks, std::size_t max_file_pieces = IncomingTransfer::kMaxPieces)
      : callbacks_(std::move(callbacks)), max_file_pieces_(max_file_pieces) {}

  void fetch(FetchNumber, RemoteArtifact, std::shared_ptr<FileTarget>, ArtifactSource::OnEnd, std::uint64_t now_ms);
  void cancel(FetchNumber);
  void on_reply(std::string_view message, std::uint64_t now_ms);
  // Receives the results of run_on_disk, in the order of the calls.
  void on_disk_result(FetchNumber, Result<void>, std::uint64_t now_ms);
  // Starts transfers and sends requests. Returns the time in ms until the next call is due.
  std::uint64_t run(std::uint64_t now_ms);

 private:
  struct Transfer {
    FetchNumber number = 0;
    RemoteArtifact artifact;
    std::shared_ptr<FileTarget> target;
    ArtifactSource::OnEnd on_end;
    std::uint64_t queued_ms = 0;
    std::string id;  // random; new for each attempt; empty while the transfer waits
    IncomingTransfer pieces{0, 0};
    std::shared_ptr<ReceivedFile> file;
    bool is_second_attempt = false;
  };
  void start(Transfer&, std::uint64_t now_ms);
  // Returns false if the transfer has ended.
  bool send_requests(Transfer&, std::uint64_t now_ms);
  void write_pieces(Transfer&);
  void end(FetchNumber, FetchEnd);
  std::string describe_silence(const Transfer&) const;

  Callbacks callbacks_;
  const std::size_t max_file_pieces_;
  std::map<FetchNumber, Transfer> active_;
  std::deque<Transfer> waiting_;
};

}  // namespace mycojobs
