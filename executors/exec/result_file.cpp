#include "executors/exec/result_file.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "text/json.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKey = 1000;

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

tl::unexpected<Error> wrong(std::size_t line, const std::string& what) {
  return fail(Code::invalid, "result file, line " + std::to_string(line) + ": " + what);
}

Result<ResultValues> of_json(std::string_view text) {
  const auto object = parse_json(text, text.size());
  if (!object) return fail(Code::invalid, "result file: begins like a JSON object and is not one");
  return parse_result_values(*object);
}

}  // namespace

Result<ResultValues> parse_result_file(std::string_view text) {
  text = without_byte_order_mark(text);
  if (trimmed(text).starts_with('{')) return of_json(trimmed(text));
  ResultValues out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    ++number;
    if (trimmed(line).empty()) continue;
    const std::size_t equals = line.find('=');
    const std::size_t here = line.find("<<");
    const bool many = here < equals;
    const std::string key(line.substr(0, std::min(here, equals)));
    if (std::min(here, equals) == std::string_view::npos)
      return wrong(number, "neither key=value nor key<<END: " + excerpt(line, 80));
    if (key.empty() || key.size() > kMaxKey) return wrong(number, "a key has 1 to 1000 bytes");
    std::string value(many ? "" : line.substr(equals + 1));
    if (many) {
      const std::string mark(line.substr(here + 2));
      const std::size_t began = number;
      bool ended = false;
      if (mark.empty()) return wrong(number, "no end mark after <<: write for example " + key + "<<END");
      for (bool first = true; !ended && !text.empty(); first = false) {
        const std::string_view next = take_line(text);
        ++number;
        ended = next == mark;
        if (!ended) value += (first ? "" : "\n") + std::string(next);
      }
      if (!ended)
        return wrong(began, excerpt(key, 80) + "<<" + excerpt(mark, 80) + " has no line " + excerpt(mark, 80));
    }
    if (!is_utf8(key) || !is_utf8(value))
      return wrong(number, "the value of " + excerpt(key, 80) + " is not UTF-8 text");
    out.texts[key] = std::move(value);
  }
  return out;
}

ProgramProgress parse_progress(std::string_view line) {
  line = trimmed(line);
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  std::string_view rest = line.substr(static_cast<std::size_t>(end - line.data()));
  const bool number = error == std::errc() && (rest.empty() || rest.front() == ' ' || rest.front() == '%');
  if (!number) return {std::nullopt, std::string(line)};
  rest = trimmed(rest);
  if (rest.starts_with('%')) {
    value /= 100;
    rest = trimmed(rest.substr(1));
  }
  if (!(value >= 0 && value <= 1)) return {std::nullopt, std::string(line)};
  return {value, std::string(rest)};
}

}  // namespace mycojobs
