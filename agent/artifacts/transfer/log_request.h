// Messages that transfer lines of a spooled log (artifacts/logs/spooled_log.h) from the runner that has them to a
// reader. They use the channels of transfer_message.h. The reader publishes on the channel of the runner:
//   log 1 <transfer> <channel of the reader> <job> <run> <after> <until> <number of lines, at most>
// The runner publishes on the channel of the reader:
//   lines <transfer> LF <encode_spooled_lines()>
//
// <transfer> are 32 random hex digits of one request. The runner answers also if it has no lines of the range. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "artifacts/logs/spooled_log.h"
#include "artifacts/transfer/transfer_message.h"

namespace mycojobs {

// REQUIRES: request.log_range has a value.
std::string encode_log_request(const PieceRequest& request);
// Returns no value for a message with another form; see parse_request().
std::optional<PieceRequest> parse_log_request(std::string_view message, std::uint32_t database);

std::string encode_log_reply(const std::string& transfer_id, std::string_view lines);
struct LogReply {
  std::string_view transfer_id, lines;
};
std::optional<LogReply> parse_log_reply(std::string_view message);

}  // namespace mycojobs
