// Transfers files of jobs between processes through one Redis server. Sends the files of this process, and receives
// files of other processes. A loop of base/loop_thread.h.
//
//   subscription (thread of the store) --messages--> loop --requests, pieces--> PUBLISH
//                                                     | ^
//                                                     v |
//                                     strands of the disks of the contexts
//
// If this process has an HTTPS listener, the loop creates links, with which other processes download large files
// (file_link.h).
//
// PUBLISH can wait for the server, so the loop has a separate thread and a separate store. Decision 35.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "artifacts/store_name_cache.h"
#include "artifacts/transfer/artifact_source.h"
#include "artifacts/transfer/file_link.h"
#include "artifacts/transfer/link_downloads.h"
#include "artifacts/transfer/transfer_receiver.h"
#include "artifacts/transfer/transfer_sender.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class TransferLoop final : public TimedLoop, public ArtifactSource {
 public:
  struct Settings {
    std::vector<Id> contexts;  // contexts with transfers; all are on the same Redis server
    FileHolder holder = {};    // this process as a holder; unknown: the process sends no files
    std::string state_dir;     // folder with the artifacts that are sent (artifacts/job_artifacts.h)
    std::uint64_t rate = 0;    // maximum number of bytes sent in a second; 0 means unlimited
    // See TransferReceiver. In a process with several loops, all loops together must not request more than 4 MiB.
    std::size_t max_file_pieces = IncomingTransfer::kMaxPieces;
    // Returns an additional folder that can contain the file of a job, or an empty text. After an error, the piece is
    // not sent. Called by the thread of the loop for each requested piece. If null, only the folders of
    // artifacts/job_artifacts.h are used.
    std::function<Result<std::string>(Id context, const std::string& job_key, const FileContent&)> find_folder = {};
    std::shared_ptr<HeldFileLinks> links =
        nullptr;  // the links of the HTTPS listener; null: this process has no listener
    // Networks in which files are downloaded over HTTPS. Null permits any address, and an empty list disables HTTPS.
    std::shared_ptr<const Networks> link_networks = nullptr;
    LinkTimes link_times = {};
  };
  // The store must outlive the loop.
  TransferLoop(Store&, Settings, const Clock&, std::shared_ptr<Metrics> metrics = no_metrics());
  ~TransferLoop() override;
  // Subscribes to the channels. Errors: those of StoreFactory::subscribe(). REQUIRES: called once, before the thread of
  // the loop starts.
  Result<void> subscribe(StoreFactory&);

  FetchNumber fetch(const RemoteArtifact&, std::shared_ptr<FileTarget>, OnEnd on_end) override;
  void cancel(FetchNumber) override;

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  class Subscriber;
  struct ReceivedMessage {
    Id context = 0;
    bool is_request = false;
    std::string text;
  };
  struct Fetch {
    FetchNumber number = 0;
    RemoteArtifact artifact;
    std::shared_ptr<FileTarget> target;
    OnEnd on_end;
  };
  struct CancelFetch {
    FetchNumber number = 0;
  };
  struct DiskResult {
    FetchNumber number = 0;
    Result<void> result;
  };
  struct PieceRead {
    Id context = 0;
    PieceRequest request;
    Result<std::string> bytes;
    bool is_repeated = false;  // the names of the store were read again for this request
  };
  struct DownloadedPiece {
    LinkDownloads::DownloadNumber number = 0;
    std::uint64_t offset = 0;
    std::string bytes;
  };
  struct DownloadEnd {
    LinkDownloads::DownloadNumber number = 0;
    Result<void> result;
  };
  using Event = std::variant<ReceivedMessage, Fetch, CancelFetch, DiskResult, PieceRead, DownloadedPiece, DownloadEnd>;

  void post(Event);  // thread-safe
  void on(ReceivedMessage&);
  void on(Fetch&);
  void on(CancelFetch&);
  void on(DiskResult&);
  void on(PieceRead&);
  void on(DownloadedPiece&);
  void on(DownloadEnd&);
  void read_piece(Id context, const PieceRequest&, bool is_repeated);
  void publish_piece(const TransferSender::Piece&);
  void post_to_disk(Id context, const char* direction, StrandPool::Work);
  TransferReceiver::Callbacks make_receiver_callbacks();
  void add_link_callbacks(TransferReceiver::Callbacks&);

  // Twice the bytes that this process requests. Further messages are dropped, and their pieces are requested again.
  static constexpr std::size_t kMaxPendingBytes = 8U << 20;

  Store& store_;
  const Settings settings_;
  const Clock& clock_;
  const std::shared_ptr<Metrics> metrics_;
  const std::string process_id_;  // random; part of the name of the channels for pieces
  std::map<Id, std::uint32_t> databases_;
  StoreNameCache store_names_;
  TransferSender sender_;
  TransferReceiver receiver_;
  std::atomic<FetchNumber> next_number_{1};
  std::atomic<std::size_t> pending_bytes_{0};  // size of the messages in events_
  Mailbox<Event> events_;
  std::map<Id, std::unique_ptr<Subscriber>> subscribers_;
  LinkDownloads downloads_;
  MountTable mounts_;
  bool has_missing_threads_ = false;
  StrandPool strands_;
};

}  // namespace mycojobs
