#include "artifacts/transfer/transfer_receiver.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "artifacts/transfer/transfer_message.h"
#include "base/random.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kReceiverIdleMs = 60000;
constexpr std::uint64_t kMaxReceiverWaitMs = 500;  // while a transfer is active

}  // namespace

ReceivedFile::~ReceivedFile() {
  if (file_ && !is_stored_) (void)::unlink(file_->path().c_str());
}

Result<void> ReceivedFile::write(std::string_view bytes) {
  if (!file_) {
    MJ_TRY(path, target_->create_path());
    auto file = std::make_unique<HashedFile>();
    MJ_CHECK(file->create(path));
    file_ = std::move(file);
    MJ_CHECK(target_->on_created(path));
  }
  return file_->write(bytes);
}

Result<void> ReceivedFile::finish() {
  MJ_CHECK(file_->finish());
  const std::string hash = file_->hash();
  if (file_->bytes() != content_.bytes || hash != content_.sha256) {
    (void)::unlink(file_->path().c_str());  // since the next attempt creates a file with the same path
    file_.reset();
    return fail(Code::conflict, "the received content does not have the hash of the record");
  }
  MJ_CHECK(target_->store({file_->path(), hash, file_->bytes()}));
  is_stored_ = true;
  return {};
}

void TransferReceiver::fetch(FetchNumber number, RemoteArtifact artifact, std::shared_ptr<FileTarget> target,
                             ArtifactSource::OnEnd on_end, std::uint64_t now_ms) {
  Transfer& transfer = waiting_.emplace_back();
  transfer.number = number;
  transfer.artifact = std::move(artifact);
  transfer.target = std::move(target);
  transfer.on_end = std::move(on_end);
  transfer.queued_ms = now_ms;
}

// File and target are released on the strand, since deleting files can block.
void TransferReceiver::cancel(FetchNumber number) {
  std::erase_if(waiting_, [&](const Transfer& transfer) { return transfer.number == number; });
  const auto transfer = active_.find(number);
  if (transfer == active_.end()) return;
  if (transfer->second.download != 0) callbacks_.cancel_download(transfer->second.download);
  callbacks_.run_on_disk(
      transfer->second.artifact.context, 0,
      [file = std::move(transfer->second.file), target = std::move(transfer->second.target)]() mutable {
        file.reset();
        target.reset();
        return Result<void>();
      });
  active_.erase(transfer);
}

void TransferReceiver::start(Transfer& transfer, std::uint64_t now_ms) {
  transfer.id = random_hex(kTransferIdDigits / 2);
  transfer.pieces = IncomingTransfer(transfer.artifact.content.bytes, now_ms);
  transfer.file = std::make_shared<ReceivedFile>(transfer.artifact.content, transfer.target);
  if (transfer.download != 0) callbacks_.cancel_download(std::exchange(transfer.download, 0));
  // A file with a wrong hash is received through Redis only.
  const bool wants_link = callbacks_.request_link && !transfer.is_second_attempt &&
                          transfer.artifact.content.bytes >= kMinLinkBytes && !is_link_paused(transfer, now_ms);
  transfer.link_state = wants_link ? LinkState::wanted : LinkState::none;
}

bool TransferReceiver::is_link_paused(const Transfer& transfer, std::uint64_t now_ms) {
  std::erase_if(link_pauses_, [now_ms](const auto& entry) { return entry.second <= now_ms; });
  return link_pauses_.contains({transfer.artifact.context, to_string(transfer.artifact.holder)});
}

void TransferReceiver::request_link(Transfer& transfer, std::uint64_t now_ms) {
  transfer.link_state = LinkState::requested;
  transfer.link_deadline_ms = now_ms + link_times_.reply_ms;
  transfer.link_offset = transfer.pieces.next_request();
  ++transfer.link_count;
  callbacks_.request_link(transfer.artifact, transfer.id);
}

void TransferReceiver::on_link(Transfer& transfer, const std::optional<FileLink>& link, std::uint64_t now_ms) {
  if (transfer.link_state != LinkState::requested) return;
  const std::uint64_t offset = transfer.pieces.next_request();
  transfer.link_state = LinkState::none;
  if (!link || transfer.pieces.is_requested()) return;
  transfer.link_state = LinkState::connecting;
  transfer.link_deadline_ms = now_ms + link_times_.first_piece_ms;
  transfer.download = ++last_download_;
  transfer.has_downloaded = false;
  callbacks_.start_download(transfer.download, *link, transfer.artifact.content.bytes, offset);
}

// A download can hang before the first piece: the server may send nothing, or this process may not be able to start a
// thread.
void TransferReceiver::end_late_link(Transfer& transfer, std::uint64_t now_ms) {
  const bool is_connecting = transfer.link_state == LinkState::connecting;
  if ((!is_connecting && transfer.link_state != LinkState::requested) || now_ms < transfer.link_deadline_ms) return;
  transfer.link_state = LinkState::none;  // the holder has an earlier version, or a message was lost
  if (!is_connecting) return;
  callbacks_.cancel_download(std::exchange(transfer.download, 0));
  pause_links(
      transfer,
      {Code::unavailable, "it has sent nothing for " + std::to_string(link_times_.first_piece_ms / 1000) + " s"},
      now_ms);
}

void TransferReceiver::pause_links(const Transfer& transfer, const Error& error, std::uint64_t now_ms) {
  link_pauses_[{transfer.artifact.context, to_string(transfer.artifact.holder)}] = now_ms + kLinkPauseMs;
  callbacks_.on_link_failed(transfer.artifact, error);
}

TransferReceiver::Transfer* TransferReceiver::find_download(DownloadNumber download) {
  const auto entry = std::find_if(active_.begin(), active_.end(),
                                  [download](const auto& active) { return active.second.download == download; });
  return entry == active_.end() ? nullptr : &entry->second;
}

void TransferReceiver::on_download_piece(DownloadNumber download, std::uint64_t offset, std::string bytes,
                                         std::uint64_t now_ms) {
  Transfer* const transfer = find_download(download);
  if (transfer == nullptr) return;  // the transfer has ended
  if (transfer->link_state == LinkState::connecting) {
    transfer->link_state = LinkState::streaming;
    transfer->pieces.begin_stream();
  }
  const std::uint64_t size = bytes.size();
  // Pieces that were requested while the download began are ignored here.
  if (!transfer->pieces.add_streamed_piece(offset, std::move(bytes), now_ms))
    return callbacks_.resume_download(download);
  transfer->has_downloaded = true;
  callbacks_.count_downloaded_bytes(transfer->artifact.context, size);
  write_pieces(*transfer);
}

void TransferReceiver::on_download_end(DownloadNumber download, const Result<void>& result, std::uint64_t now_ms) {
  Transfer* const transfer = find_download(download);
  if (transfer == nullptr) return;
  transfer->download = 0;
  transfer->link_state = LinkState::none;
  transfer->pieces.end_stream(now_ms);
  if (result) return;
  // After a broken connection, the download continues with another link.
  if (transfer->has_downloaded && transfer->link_count < kMaxLinksOfFile) {
    transfer->link_state = LinkState::wanted;
    return;
  }
  // A holder that rejects a link was reached, so other files are downloaded from the holder without a pause.
  const bool is_refused = result.error().code == Code::not_found;
  if (!transfer->has_downloaded && !is_refused) pause_links(*transfer, result.error(), now_ms);
}

void TransferReceiver::end(FetchNumber number, FetchEnd fetch_end) {
  const auto transfer = active_.find(number);
  if (transfer == active_.end()) return;
  const auto on_end = std::move(transfer->second.on_end);
  callbacks_.count_end(transfer->second.artifact.context, fetch_end.status);
  cancel(number);
  on_end(std::move(fetch_end));
}

std::string TransferReceiver::describe_silence(const Transfer& transfer) const {
  if (!callbacks_.is_subscribed(transfer.artifact.context)) {
    return "this host does not receive messages of the channel mj:transfer: check the connection to Redis, and the "
           "channels of its user (`context acl`)";
  }
  return describe(transfer.artifact.holder) + " has not sent it for " + std::to_string(kSilenceMs / 1000) + " s";
}

bool TransferReceiver::send_requests(Transfer& transfer, std::uint64_t now_ms) {
  end_late_link(transfer, now_ms);
  if (!callbacks_.is_subscribed(transfer.artifact.context)) return true;
  // Another transfer can use more than its share until its pieces are written, so a new transfer waits for free pieces.
  std::size_t pieces_of_others = 0;
  for (const auto& [number, other] : active_)
    if (number != transfer.number) pieces_of_others += other.pieces.pieces_in_use();
  if (transfer.link_state == LinkState::wanted) request_link(transfer, now_ms);
  // Before the first piece of a download, only a few pieces are requested through Redis, one at a time.
  std::size_t share =
      std::min(std::max<std::size_t>(IncomingTransfer::kMaxPieces / active_.size(), 1), max_file_pieces_);
  if (transfer.link_state == LinkState::requested || transfer.link_state == LinkState::connecting) {
    const std::uint64_t requested_bytes = transfer.pieces.next_request() - transfer.link_offset;
    share = requested_bytes < kMaxPiecesBeforeDownload * kPieceBytes ? 1 : 0;
  }
  const std::size_t free_pieces =
      IncomingTransfer::kMaxPieces - std::min(pieces_of_others, IncomingTransfer::kMaxPieces);
  for (const std::uint64_t offset : transfer.pieces.pop_due_requests(std::min(share, free_pieces), now_ms)) {
    const auto receivers = callbacks_.request(transfer.artifact, transfer.id, offset);
    if (!receivers && receivers.error().code == Code::unavailable) return true;  // repeated after a time-out
    if (receivers && *receivers > 0) continue;
    end(transfer.number, {FetchStatus::away, receivers ? describe(transfer.artifact.holder) + " is not connected"
                                                       : receivers.error().message});
    return false;
  }
  return true;
}

std::uint64_t TransferReceiver::run(std::uint64_t now_ms) {
  while (!waiting_.empty() && active_.size() < kMaxTransfers) {
    const FetchNumber number = waiting_.front().number;
    Transfer& transfer = active_.emplace(number, std::move(waiting_.front())).first->second;
    waiting_.pop_front();
    start(transfer, now_ms);
  }
  std::vector<FetchNumber> numbers;
  for (const auto& [number, transfer] : active_) numbers.push_back(number);
  std::uint64_t next_ms = now_ms + (active_.empty() ? kReceiverIdleMs : kMaxReceiverWaitMs);
  for (const FetchNumber number : numbers) {
    const auto entry = active_.find(number);
    if (entry == active_.end()) continue;
    Transfer& transfer = entry->second;
    if (now_ms >= transfer.pieces.last_piece_ms() + kSilenceMs) {
      const bool is_disk_silent = transfer.pieces.is_complete() || transfer.pieces.is_writing();
      end(number, is_disk_silent ? FetchEnd{FetchStatus::failed, "the disk of state_dir does not answer"}
                                 : FetchEnd{FetchStatus::away, describe_silence(transfer)});
    } else if (send_requests(transfer, now_ms)) {
      next_ms = std::min(next_ms, transfer.pieces.next_timeout_ms());
      if (transfer.link_state == LinkState::requested || transfer.link_state == LinkState::connecting)
        next_ms = std::min(next_ms, transfer.link_deadline_ms);
    }
  }
  // Ends transfers that have waited too long, since their jobs occupy slots.
  while (!waiting_.empty() && now_ms >= waiting_.front().queued_ms + kSilenceMs) {
    const Transfer transfer = std::move(waiting_.front());
    waiting_.pop_front();
    callbacks_.count_end(transfer.artifact.context, FetchStatus::busy);
    transfer.on_end(
        {FetchStatus::busy, "this host has received other files for " + std::to_string(kSilenceMs / 1000) + " s"});
  }
  return active_.empty() && !waiting_.empty() ? 0 : next_ms - std::min(next_ms, now_ms);
}

void TransferReceiver::on_reply(std::string_view message, std::uint64_t now_ms) {
  const auto reply = parse_reply(message);
  if (!reply) return;
  const auto entry = std::find_if(active_.begin(), active_.end(),
                                  [&](const auto& active) { return active.second.id == reply->transfer_id; });
  if (entry == active_.end()) return;
  Transfer& transfer = entry->second;
  if (reply->is_missing) {
    return end(transfer.number, {FetchStatus::lost, describe(transfer.artifact.holder) + " does not have it any more"});
  }
  if (reply->is_link) return on_link(transfer, reply->link, now_ms);
  if (!transfer.pieces.add_piece(reply->offset, std::string(reply->bytes), now_ms)) return;
  callbacks_.count_bytes(transfer.artifact.context, reply->bytes.size());
  write_pieces(transfer);
}

void TransferReceiver::write_pieces(Transfer& transfer) {
  while (auto bytes = transfer.pieces.pop_writable()) {
    callbacks_.run_on_disk(transfer.artifact.context, transfer.number,
                           [file = transfer.file, bytes = std::move(*bytes)] { return file->write(bytes); });
  }
}

void TransferReceiver::on_disk_result(FetchNumber number, Result<void> result, std::uint64_t now_ms) {
  const auto entry = active_.find(number);
  if (entry == active_.end()) return;
  Transfer& transfer = entry->second;
  if (!result && result.error().code == Code::conflict) {
    if (std::exchange(transfer.is_second_attempt, true))
      return end(number, {FetchStatus::damaged, std::move(result).error().message});
    return start(transfer, now_ms);
  }
  if (!result) return end(number, {FetchStatus::failed, std::move(result).error().message});
  if (transfer.pieces.is_complete()) return end(number, {FetchStatus::received, {}});  // the result of finish()
  transfer.pieces.on_written();
  if (transfer.download != 0) callbacks_.resume_download(transfer.download);
  if (transfer.pieces.is_complete())
    callbacks_.run_on_disk(transfer.artifact.context, number, [file = transfer.file] { return file->finish(); });
}

}  // namespace mycojobs
