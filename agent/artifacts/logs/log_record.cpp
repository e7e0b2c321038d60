#include "artifacts/logs/log_record.h"

#include "base/parse.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

// Removes and returns the text before the separator, with the separator. Returns an empty text without a separator.
std::string_view pop_word(std::string_view& text, char separator) {
  const std::size_t end = text.substr(0, kMaxRecordHeadBytes).find(separator);
  if (end == std::string_view::npos) return {};
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end + 1);
  return word;
}

}  // namespace

void append_log_record(std::string& out, const Log& entry) {
  out.append(std::to_string(entry.seq)).append(" ").append(std::to_string(entry.ts_ms)).append(" ");
  out.append(to_string(entry.stream)).append(" ").append(std::to_string(entry.text.size())).append("\n");
  out.append(entry.text).append("\n");
}

std::optional<Log> pop_log_record(std::string_view& text) {
  std::string_view rest = text;
  Log entry;
  std::uint64_t bytes = 0;
  if (!parse_u64(pop_word(rest, ' '), entry.seq) || !parse_u64(pop_word(rest, ' '), entry.ts_ms)) return std::nullopt;
  const auto stream = parse<LogStream>(pop_word(rest, ' '));
  if (!stream || !parse_u64(pop_word(rest, '\n'), bytes)) return std::nullopt;
  if (bytes == 0 || bytes > entry.seq || bytes >= rest.size() || rest[bytes] != '\n') return std::nullopt;
  entry.stream = *stream;
  entry.text = rest.substr(0, bytes);
  entry.size = bytes;
  text = rest.substr(bytes + 1);
  return entry;
}

}  // namespace mycojobs
