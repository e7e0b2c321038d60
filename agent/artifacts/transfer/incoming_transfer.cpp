#include "artifacts/transfer/incoming_transfer.h"

#include <algorithm>

#include "artifacts/transfer/transfer_message.h"

namespace mycojobs {

std::uint64_t IncomingTransfer::request_timeout_ms() const {
  return std::clamp(round_trip_ms_ * 4, kMinTimeoutMs, kMaxTimeoutMs);
}

std::vector<std::uint64_t> IncomingTransfer::pop_due_requests(std::size_t max_pieces, std::uint64_t now_ms) {
  std::vector<std::uint64_t> offsets;
  const std::uint64_t timeout_ms = request_timeout_ms();
  for (auto& [offset, sent_ms] : requested_ms_) {
    if (now_ms < sent_ms + timeout_ms) continue;
    sent_ms = now_ms;
    offsets.push_back(offset);
  }
  // Holder or server are too slow for this number of pieces, or pieces are lost.
  if (!offsets.empty()) window_ = std::max<std::size_t>(window_ / 2, 1);
  repeated_requests_ += offsets.size();
  while (!is_streaming_ && !is_end(next_request_) && pieces_in_use() < std::min({window_, max_pieces, kMaxPieces})) {
    requested_ms_.emplace(next_request_, now_ms);
    offsets.push_back(next_request_);
    next_request_ += kPieceBytes;
  }
  return offsets;
}

bool IncomingTransfer::add_piece(std::uint64_t offset, std::string bytes, std::uint64_t now_ms) {
  const auto request = requested_ms_.find(offset);
  if (request == requested_ms_.end() || bytes.size() != get_piece_size(file_bytes_, offset)) return false;
  const std::uint64_t sample_ms = now_ms - std::min(now_ms, request->second);
  round_trip_ms_ = round_trip_ms_ == 0 ? sample_ms : (round_trip_ms_ * 7 + sample_ms) / 8;
  requested_ms_.erase(request);
  arrived_.emplace(offset, std::move(bytes));
  window_ = std::min(window_ + 1, kMaxPieces);
  last_piece_ms_ = now_ms;
  return true;
}

bool IncomingTransfer::add_streamed_piece(std::uint64_t offset, std::string bytes, std::uint64_t now_ms) {
  if (!is_streaming_ || offset != next_request_ || is_end(offset) ||
      bytes.size() != get_piece_size(file_bytes_, offset))
    return false;
  arrived_.emplace(offset, std::move(bytes));
  next_request_ += kPieceBytes;
  last_piece_ms_ = now_ms;
  return true;
}

void IncomingTransfer::end_stream(std::uint64_t now_ms) {
  is_streaming_ = false;
  last_piece_ms_ = now_ms;
}

std::optional<std::string> IncomingTransfer::pop_writable() {
  const auto piece = arrived_.find(next_write_);
  if (piece == arrived_.end()) return std::nullopt;
  std::string bytes = std::move(piece->second);
  arrived_.erase(piece);
  next_write_ += kPieceBytes;
  ++writing_pieces_;
  return bytes;
}

void IncomingTransfer::on_written() { --writing_pieces_; }

std::uint64_t IncomingTransfer::next_timeout_ms() const {
  std::uint64_t first_ms = UINT64_MAX;
  for (const auto& [offset, sent_ms] : requested_ms_) first_ms = std::min(first_ms, sent_ms + request_timeout_ms());
  return first_ms;
}

}  // namespace mycojobs
