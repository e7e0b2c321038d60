#include "artifacts/transfer/transfer_message.h"

#include <array>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "base/parse.h"
#include "base/sha256.h"
#include "store/transfer_store.h"

namespace mycojobs {
namespace {

constexpr std::string_view kGet = "get", kVersion = "1", kPiece = "piece", kMissing = "missing", kLink = "link";

// Splits a text at single blanks. Returns no value if the number of words is not N.
template <std::size_t N>
std::optional<std::array<std::string_view, N>> split_words(std::string_view text) {
  std::array<std::string_view, N> words;
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = text.find(' ');
    if ((end == std::string_view::npos) != (i + 1 == N)) return std::nullopt;
    words[i] = text.substr(0, end);
    if (i + 1 < N) text.remove_prefix(end + 1);
  }
  return words;
}

// A job key that has the name of a folder, so that the key cannot contain a path.
bool is_job_key(const std::string& text) {
  return text.starts_with("job:") && parse_job_folder_name(job_folder_name(text)) == text;
}

bool is_offset_of(std::uint64_t offset, std::uint64_t file_bytes) {
  return offset % kPieceBytes == 0 && (offset < file_bytes || (offset == 0 && file_bytes == 0));
}

}  // namespace

bool is_transfer_address(const PieceRequest& request, std::uint32_t database) {
  return is_hex(request.transfer_id, kTransferIdDigits) && is_receiver_channel(database, request.reply_channel) &&
         is_job_key(request.job_key);
}

std::string encode_request(const PieceRequest& request) {
  std::string message;
  for (const std::string_view word : {request.is_link ? kLink : kGet, kVersion, std::string_view(request.transfer_id),
                                      std::string_view(request.reply_channel), std::string_view(request.job_key),
                                      std::string_view(request.file.sha256)})
    message.append(word).append(" ");
  message += std::to_string(request.file.bytes);
  return request.is_link ? message : message + ' ' + std::to_string(request.offset);
}

std::optional<PieceRequest> parse_request(std::string_view message, std::uint32_t database) {
  const auto words = split_words<8>(message);
  if (!words) return std::nullopt;
  const auto& [get, version, transfer_id, channel, job_key, sha256, bytes, offset] = *words;
  PieceRequest request{std::string(transfer_id), std::string(channel), std::string(job_key), {std::string(sha256)}};
  if (get != kGet || version != kVersion || !is_transfer_address(request, database) || !is_hex(sha256, kSha256Digits) ||
      !parse_u64(bytes, request.file.bytes) || !parse_u64(offset, request.offset) ||
      !is_offset_of(request.offset, request.file.bytes))
    return std::nullopt;
  return request;
}

std::optional<PieceRequest> parse_link_request(std::string_view message, std::uint32_t database) {
  const auto words = split_words<7>(message);
  if (!words) return std::nullopt;
  const auto& [link, version, transfer_id, channel, job_key, sha256, bytes] = *words;
  PieceRequest request{std::string(transfer_id), std::string(channel), std::string(job_key), {std::string(sha256)}};
  request.is_link = true;
  if (link != kLink || version != kVersion || !is_transfer_address(request, database) ||
      !is_hex(sha256, kSha256Digits) || !parse_u64(bytes, request.file.bytes))
    return std::nullopt;
  return request;
}

std::string encode_link(const std::string& transfer_id, const std::optional<FileLink>& link) {
  std::string message = std::string(kLink) + ' ' + transfer_id;
  if (link) message += ' ' + link->address + ' ' + link->ticket + ' ' + link->server_key_sha256;
  return message;
}

std::string encode_piece(const std::string& transfer_id, std::uint64_t offset, std::string_view bytes) {
  std::string message(kPiece);
  message.reserve(bytes.size() + 64);
  message.append(" ").append(transfer_id).append(" ").append(std::to_string(offset)).append("\n").append(bytes);
  return message;
}

std::string encode_missing(const std::string& transfer_id) { return std::string(kMissing) + ' ' + transfer_id; }

namespace {

std::optional<PieceReply> parse_short_reply(std::string_view message) {
  if (const auto words = split_words<2>(message); words && is_hex((*words)[1], kTransferIdDigits)) {
    if ((*words)[0] == kMissing) return PieceReply{.is_missing = true, .transfer_id = (*words)[1]};
    if ((*words)[0] == kLink) return PieceReply{.is_link = true, .transfer_id = (*words)[1]};
    return std::nullopt;
  }
  const auto words = split_words<5>(message);
  if (!words || (*words)[0] != kLink || !is_hex((*words)[1], kTransferIdDigits)) return std::nullopt;
  FileLink link{std::string((*words)[2]), std::string((*words)[3]), std::string((*words)[4])};
  if (!is_valid_link(link)) return std::nullopt;
  return PieceReply{.is_link = true, .transfer_id = (*words)[1], .link = std::move(link)};
}

}  // namespace

std::optional<PieceReply> parse_reply(std::string_view message) {
  const std::size_t head_end = message.find('\n');
  const std::string_view head = message.substr(0, head_end);
  if (head_end == std::string_view::npos) return parse_short_reply(head);
  const auto words = split_words<3>(head);
  PieceReply reply;
  if (!words || (*words)[0] != kPiece || !is_hex((*words)[1], kTransferIdDigits) ||
      !parse_u64((*words)[2], reply.offset))
    return std::nullopt;
  reply.transfer_id = (*words)[1];
  reply.bytes = message.substr(head_end + 1);
  return reply;
}

}  // namespace mycojobs
