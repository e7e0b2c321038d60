#include "artifacts/transfer/transfer_sender.h"

#include <algorithm>
#include <utility>

#include "artifacts/transfer/log_request.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kSenderIdleMs = 60000;
constexpr std::size_t kMaxPublishBatch = 16;  // so that the caller can do other work between two calls

}  // namespace

// The burst is a tenth of a second, at least one piece. A bucket with 0 tokens is not empty, so the capacity is one
// byte less: a piece is published only if at least one byte may be sent.
TransferSender::TransferSender(std::uint64_t rate, Callbacks callbacks)
    : bucket_(rate, std::max<std::uint64_t>(rate / 10, kPieceBytes) - 1), callbacks_(std::move(callbacks)) {}

void TransferSender::on_request(Id context, PieceRequest request, std::uint64_t now_ms) {
  if (requests_.size() >= kMaxRequests || !request_ids_.insert(get_request_id(request)).second) return;
  requests_.push_back({context, std::move(request), now_ms});
}

void TransferSender::on_read(Id context, const PieceRequest& request, Result<std::string> bytes) {
  --reading_;
  Piece piece{context, request.reply_channel, {}, 0, get_request_id(request)};
  if (bytes && request.is_link) {
    piece.message = std::move(*bytes);
  } else if (bytes) {
    piece.message = request.log_range ? encode_log_reply(request.transfer_id, *bytes)
                                      : encode_piece(request.transfer_id, request.offset, *bytes);
    piece.bytes = bytes->size();
  } else if (bytes.error().code == Code::not_found) {
    piece.message = encode_missing(request.transfer_id);
  } else {
    request_ids_.erase(piece.request_id);
    return;
  }
  pieces_.push_back(std::move(piece));
}

std::uint64_t TransferSender::run(std::uint64_t now_ms) {
  for (std::size_t i = 0; i < kMaxPublishBatch && !pieces_.empty() && bucket_.empty_ms(now_ms) == 0; ++i) {
    const Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    bucket_.consume(piece.bytes, now_ms);
    request_ids_.erase(piece.request_id);
    callbacks_.publish(piece);
  }
  while (!requests_.empty() && reading_ + pieces_.size() < kMaxPiecesInMemory) {
    const WaitingRequest waiting = std::move(requests_.front());
    requests_.pop_front();
    if (now_ms > waiting.received_ms + kMaxRequestAgeMs) {
      request_ids_.erase(get_request_id(waiting.request));
      continue;
    }
    ++reading_;
    callbacks_.read(waiting.context, waiting.request);
  }
  if (pieces_.empty()) return kSenderIdleMs;  // the end of a read causes the next call
  return bucket_.empty_ms(now_ms);
}

}  // namespace mycojobs
