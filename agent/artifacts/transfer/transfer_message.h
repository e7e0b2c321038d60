// Messages that transfer an artifact from the runner that stored it (the holder) to another process (the receiver),
// through channels of Redis (store/transfer_store.h). The receiver requests each piece. The holder answers each request
// with a piece, or with `missing`. Messages can be lost, and any client that may publish on a channel can forge them.
//
// The receiver publishes on the channel of the runner (the holder):
//   get 1 <transfer> <channel of the receiver> <job> <sha256> <bytes> <offset>
// The holder publishes on the channel of the receiver one of:
//   piece <transfer> <offset> LF <bytes>
//   missing <transfer>
//
// The receiver can also request a link, by which it downloads the rest of the file over HTTPS (file_link.h):
//   link 1 <transfer> <channel of the receiver> <job> <sha256> <bytes>
// The holder publishes `missing`, or one of:
//   link <transfer> <host:port> <ticket> <SHA-256 of the public key of the server>
//   link <transfer>                                       the holder has no HTTPS listener, or too many open links
// A holder of an earlier version ignores the request.
//
// <transfer> are 32 random hex digits of one attempt, which only sender and receiver of the request know. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "artifacts/artifact_store.h"
#include "artifacts/logs/spooled_log.h"
#include "artifacts/transfer/file_link.h"

namespace mycojobs {

inline constexpr std::uint64_t kPieceBytes = 256U << 10;  // size of each piece except the last one
inline constexpr std::size_t kTransferIdDigits = 32;

// Returns the size of the piece at an offset that is a multiple of kPieceBytes. A file without bytes has one piece.
inline std::uint64_t get_piece_size(std::uint64_t file_bytes, std::uint64_t offset) {
  return file_bytes - offset < kPieceBytes ? file_bytes - offset : kPieceBytes;
}

struct PieceRequest {
  std::string transfer_id;
  std::string reply_channel;
  std::string job_key;
  FileContent file;
  std::uint64_t offset = 0;
  bool is_link = false;                    // a link is requested, which has no offset
  std::optional<LogRange> log_range = {};  // set for lines of a log, which have neither file nor offset (log_request.h)
};
// Returns whether transfer, reply channel and job of a received request have the required form.
bool is_transfer_address(const PieceRequest&, std::uint32_t database);
std::string encode_request(const PieceRequest&);
// Returns no value for a message with another form: an invalid key, hash or offset, or a reply channel that is not the
// channel of a receiver in this database.
std::optional<PieceRequest> parse_request(std::string_view message, std::uint32_t database);

// Returns no value for a message with another form; see parse_request().
std::optional<PieceRequest> parse_link_request(std::string_view message, std::uint32_t database);

// A reply to the request for a piece or a link.
struct PieceReply {
  bool is_missing = false;  // the holder does not have the file; the other members except transfer_id are not set
  bool is_link = false;     // the reply to the request for a link; `link` has no value if there is none
  std::string_view transfer_id = {};
  std::uint64_t offset = 0;
  std::string_view bytes = {};
  std::optional<FileLink> link = {};
};
std::string encode_link(const std::string& transfer_id, const std::optional<FileLink>&);
std::string encode_piece(const std::string& transfer_id, std::uint64_t offset, std::string_view bytes);
std::string encode_missing(const std::string& transfer_id);
// Returns views of the message, or no value for a message with another form.
std::optional<PieceReply> parse_reply(std::string_view message);

}  // namespace mycojobs
