// Decides which pieces of a file are requested, and when. Requested pieces that were not written yet are limited, so
// that neither Redis nor this process has many pieces in memory. A piece that does not arrive in time is requested
// again. Uses no clock: all times are arguments, in ms. Not thread-safe.
//
//   pop_due_requests() --> add_piece() --> pop_writable() --> on_written() --> ... --> is_complete()
//
// Pieces can also arrive in order without a request, from a stream. No further pieces are requested then, until the
// stream ends.
//
//   begin_stream() --> add_streamed_piece() --> ... --> end_stream()
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mycojobs {

class IncomingTransfer {
 public:
  static constexpr std::size_t kMaxPieces = 16;  // requested and not yet written: 4 MiB
  static constexpr std::uint64_t kMinTimeoutMs = 2000, kMaxTimeoutMs = 10000;

  IncomingTransfer(std::uint64_t file_bytes, std::uint64_t now_ms) : file_bytes_(file_bytes), last_piece_ms_(now_ms) {}

  // Returns the offsets of the pieces that must be requested now, so that at most max_pieces are requested and not yet
  // written. REQUIRES: the caller sends the requests.
  std::vector<std::uint64_t> pop_due_requests(std::size_t max_pieces, std::uint64_t now_ms);
  // Returns false, and ignores the piece, if it was not requested, has arrived before or has a wrong size.
  bool add_piece(std::uint64_t offset, std::string bytes, std::uint64_t now_ms);
  // Returns the next piece in the order of the file, or no value if it has not arrived yet.
  std::optional<std::string> pop_writable();
  // Begins a stream of the pieces behind those that were requested already.
  void begin_stream() { is_streaming_ = true; }
  // Returns false, and ignores the piece, if it is not the next piece of the stream or has a wrong size.
  bool add_streamed_piece(std::uint64_t offset, std::string bytes, std::uint64_t now_ms);
  // The missing pieces are requested again. The time of the latest piece becomes now_ms.
  void end_stream(std::uint64_t now_ms);
  bool is_streaming() const { return is_streaming_; }
  std::uint64_t next_request() const { return next_request_; }  // offset
  bool is_requested() const { return is_end(next_request_); }   // no further piece must be requested
  void on_written();                                            // REQUIRES: one call for each piece of pop_writable().
  std::size_t pieces_in_use() const { return requested_ms_.size() + arrived_.size() + writing_pieces_; }
  bool is_writing() const { return writing_pieces_ > 0; }
  bool is_complete() const { return is_end(next_write_) && writing_pieces_ == 0; }
  std::uint64_t last_piece_ms() const { return last_piece_ms_; }  // time of the latest piece, or of the start
  // Returns the time at which a request must be repeated, or UINT64_MAX if no piece is awaited.
  std::uint64_t next_timeout_ms() const;
  std::uint64_t repeated_requests() const { return repeated_requests_; }

 private:
  std::uint64_t request_timeout_ms() const;
  // Returns whether the offset is behind the last piece. A file without bytes has one piece.
  bool is_end(std::uint64_t offset) const { return offset > 0 && offset >= file_bytes_; }

  std::uint64_t file_bytes_;
  std::uint64_t next_request_ = 0, next_write_ = 0;      // offsets
  std::map<std::uint64_t, std::uint64_t> requested_ms_;  // time of the latest request by offset
  std::map<std::uint64_t, std::string> arrived_;         // pieces that wait for an earlier piece, by offset
  std::size_t writing_pieces_ = 0;
  bool is_streaming_ = false;
  std::size_t window_ = 4;  // number of pieces in use; grows while pieces arrive in time
  std::uint64_t round_trip_ms_ = 0, last_piece_ms_ = 0, repeated_requests_ = 0;
};

}  // namespace mycojobs
