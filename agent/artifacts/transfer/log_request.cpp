#include "artifacts/transfer/log_request.h"

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::string_view kLog = "log 1 ", kLines = "lines ";

std::string_view pop_request_word(std::string_view& text) {
  const std::size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

}  // namespace

std::string encode_log_request(const PieceRequest& request) {
  return std::string(kLog) + request.transfer_id + ' ' + request.reply_channel + ' ' + request.job_key + ' ' +
         std::to_string(request.log_range->run) + ' ' + std::to_string(request.log_range->after_seq) + ' ' +
         std::to_string(request.log_range->until_seq) + ' ' + std::to_string(request.log_range->max_lines);
}

std::optional<PieceRequest> parse_log_request(std::string_view message, std::uint32_t database) {
  if (!message.starts_with(kLog)) return std::nullopt;
  message.remove_prefix(kLog.size());
  PieceRequest request;
  request.transfer_id = pop_request_word(message);
  request.reply_channel = pop_request_word(message);
  request.job_key = pop_request_word(message);
  LogRange range;
  std::uint64_t max_lines = 0;
  const bool has_numbers =
      parse_u64(pop_request_word(message), range.run) && parse_u64(pop_request_word(message), range.after_seq) &&
      parse_u64(pop_request_word(message), range.until_seq) && parse_u64(pop_request_word(message), max_lines);
  if (!has_numbers || !message.empty() || range.after_seq >= range.until_seq || max_lines == 0 ||
      max_lines > UINT32_MAX || !is_transfer_address(request, database))
    return std::nullopt;
  range.max_lines = static_cast<std::uint32_t>(max_lines);
  request.log_range = range;
  return request;
}

std::string encode_log_reply(const std::string& transfer_id, std::string_view lines) {
  std::string message(kLines);
  message.reserve(lines.size() + 64);
  return message.append(transfer_id).append("\n").append(lines);
}

std::optional<LogReply> parse_log_reply(std::string_view message) {
  if (!message.starts_with(kLines)) return std::nullopt;
  message.remove_prefix(kLines.size());
  if (message.size() <= kTransferIdDigits || message[kTransferIdDigits] != '\n') return std::nullopt;
  return LogReply{message.substr(0, kTransferIdDigits), message.substr(kTransferIdDigits + 1)};
}

}  // namespace mycojobs
