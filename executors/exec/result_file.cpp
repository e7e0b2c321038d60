#include "executors/exec/result_file.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "text/json.h"
#include "text/split.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKeyBytes = 1000;

std::string_view trim_whitespace(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

tl::unexpected<Error> line_error(std::size_t line, const std::string& problem) {
  return fail(Code::invalid, "result file, line " + std::to_string(line) + ": " + problem);
}

Result<ResultValues> parse_json_result(std::string_view text) {
  const auto object = parse_json(text, text.size());
  if (!object) return fail(Code::invalid, "result file: begins like a JSON object and is not one");
  return parse_result_values(*object);
}

}  // namespace

Result<ResultValues> parse_result_file(std::string_view text) {
  text = without_byte_order_mark(text);
  if (trim_whitespace(text).starts_with('{')) return parse_json_result(trim_whitespace(text));
  ResultValues values;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = pop_line(text);
    ++number;
    if (trim_whitespace(line).empty()) continue;
    const std::size_t equals = line.find('=');
    const std::size_t heredoc = line.find("<<");
    const bool is_heredoc = heredoc < equals;
    const std::string key(line.substr(0, std::min(heredoc, equals)));
    if (std::min(heredoc, equals) == std::string_view::npos)
      return line_error(number, "neither key=value nor key<<END: " + excerpt(line, 80));
    if (key.empty() || key.size() > kMaxKeyBytes) return line_error(number, "a key has 1 to 1000 bytes");
    std::string value(is_heredoc ? "" : line.substr(equals + 1));
    if (is_heredoc) {
      const std::string end_mark(line.substr(heredoc + 2));
      const std::size_t first_line = number;
      bool is_closed = false;
      if (end_mark.empty()) return line_error(number, "no end mark after <<: write for example " + key + "<<END");
      for (bool is_first = true; !is_closed && !text.empty(); is_first = false) {
        const std::string_view value_line = pop_line(text);
        ++number;
        is_closed = value_line == end_mark;
        if (!is_closed) value += (is_first ? "" : "\n") + std::string(value_line);
      }
      if (!is_closed)
        return line_error(first_line,
                          excerpt(key, 80) + "<<" + excerpt(end_mark, 80) + " has no line " + excerpt(end_mark, 80));
    }
    if (!is_utf8(key) || !is_utf8(value))
      return line_error(number, "the value of " + excerpt(key, 80) + " is not UTF-8 text");
    values.texts[key] = std::move(value);
  }
  return values;
}

ProgramProgress parse_progress(std::string_view line) {
  line = trim_whitespace(line);
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  std::string_view remainder = line.substr(static_cast<std::size_t>(end - line.data()));
  const bool has_number =
      error == std::errc() && (remainder.empty() || remainder.front() == ' ' || remainder.front() == '%');
  if (!has_number) return {std::nullopt, std::string(line)};
  remainder = trim_whitespace(remainder);
  if (remainder.starts_with('%')) {
    value /= 100;
    remainder = trim_whitespace(remainder.substr(1));
  }
  if (!(value >= 0 && value <= 1)) return {std::nullopt, std::string(line)};
  return {value, std::string(remainder)};
}

}  // namespace mycojobs
