#include "api/http/download_headers.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "api/http/percent_encoding.h"
#include "base/parse.h"
#include "text/split.h"
#include "text/terminal_text.h"

namespace mycojobs::api {
namespace {

constexpr std::string_view kUnit = "bytes=";

bool is_ascii_letter_or_digit(unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; }

// Encodes a value of filename*. Plain are the characters attr-char of RFC 8187.
std::string encode_attribute(std::string_view text) { return percent_encode(text, "!#$&+-.^_`|~"); }

// Returns the name with '_' for everything but ASCII letters, digits and a few signs.
std::string to_plain_name(std::string_view text) {
  constexpr std::string_view kSigns = " !#$&()+,-.=@_~";
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = is_ascii_letter_or_digit(byte) || kSigns.find(c) != std::string_view::npos;
    if (is_plain) {
      plain += c;
    } else if (byte < 0x80 || byte >= 0xC0) {  // the first byte of a character
      plain += '_';
    }
  }
  return plain;
}

}  // namespace

Result<ByteRange> parse_byte_range(std::string_view header, std::uint64_t file_bytes) {
  const ByteRange whole{0, file_bytes, false};
  if (!header.starts_with(kUnit)) {
    const bool is_other_unit = header.find('=') != std::string_view::npos && header.find('=') != 0;
    if (header.empty() || is_other_unit) return whole;
    return fail(Code::invalid, "the header Range is not bytes=FIRST-LAST");
  }
  const std::string_view spec = trim_blanks(header.substr(kUnit.size()));
  if (spec.find(',') != std::string_view::npos) return whole;
  const auto dash = spec.find('-');
  const std::string_view first_text = spec.substr(0, dash),
                         last_text = dash == std::string_view::npos ? std::string_view() : spec.substr(dash + 1);
  std::uint64_t first = 0, last = UINT64_MAX;
  const bool is_valid = dash != std::string_view::npos && !(first_text.empty() && last_text.empty()) &&
                        (first_text.empty() || parse_u64(first_text, first)) &&
                        (last_text.empty() || parse_u64(last_text, last)) && (first_text.empty() || first <= last);
  if (!is_valid) return fail(Code::invalid, "the header Range is not bytes=FIRST-LAST");
  const std::uint64_t begin = first_text.empty() ? file_bytes - std::min(last, file_bytes) : first;
  const std::uint64_t end = first_text.empty() || last >= file_bytes ? file_bytes : last + 1;
  if (begin >= end)
    return fail(Code::invalid, "the file has " + std::to_string(file_bytes) + " bytes, and none in the range");
  return ByteRange{begin, end, true};
}

std::string format_content_range(const ByteRange& range, std::uint64_t file_bytes) {
  return "bytes " + std::to_string(range.begin) + '-' + std::to_string(range.end - 1) + '/' +
         std::to_string(file_bytes);
}

std::string format_attachment(std::string_view name) {
  std::string file = to_printable_line(name.substr(name.rfind('/') + 1));
  for (char& c : file) {
    if (c == '?' || c == '"' || c == '\\') c = '_';
  }
  if (file.empty() || file == "." || file == "..") file = "artifact";
  return "attachment; filename=\"" + to_plain_name(file) + "\"; filename*=UTF-8''" + encode_attribute(file);
}

}  // namespace mycojobs::api
