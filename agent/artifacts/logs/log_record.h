// The text form of log entries in the files of a spooled log (spooled_log.h) and in the messages that transfer them:
//
//   <seq> <time in ms> <out|err> <bytes> LF <text> LF
//
// <seq> is the number of the last byte of the text (Log::seq); each byte has a number. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "model/records.h"

namespace mycojobs {

inline constexpr std::size_t kMaxRecordHeadBytes = 80;  // with both line ends

// REQUIRES: the entry has text of the job's output.
void append_log_record(std::string& out, const Log& entry);
// Removes the first record from the text. Returns no value, and leaves the text unchanged, if the record is incomplete
// or damaged.
std::optional<Log> pop_log_record(std::string_view& text);

}  // namespace mycojobs
