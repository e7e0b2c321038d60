#include "text/utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mycojobs {
namespace {

// Returns the length of the character at the front, or 0 if it is invalid. Table 3-7 of the Unicode standard: only the
// second byte has narrower ranges.
std::size_t character_length(std::string_view bytes) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte_at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || bytes.size() < length) return 0;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte_at(1) < low || byte_at(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte_at(i) < 0x80 || byte_at(i) > 0xBF) return 0;
  }
  return length;
}

// Returns the number of leading ASCII bytes, in steps of eight: most input is ASCII only.
std::size_t ascii_length(std::string_view bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t length = 0;
  for (std::uint64_t eight = 0; bytes.size() - length >= sizeof eight; length += sizeof eight) {
    std::memcpy(&eight, bytes.data() + length, sizeof eight);
    if ((eight & kHighBits) != 0) break;
  }
  return length;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  for (std::size_t offset = ascii_length(bytes); offset < bytes.size();) {
    const bool is_ascii = static_cast<unsigned char>(bytes[offset]) < 0x80;
    const std::size_t length = is_ascii ? 1 : character_length(bytes.substr(offset));
    if (length == 0) return false;
    offset += length;
  }
  return true;
}

std::string to_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t length = character_length(bytes);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else {
      out += bytes.substr(0, length);
    }
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string truncate_utf8(std::string_view text, std::size_t max) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= max) return std::string(text);
  if (max < kMore.size()) return {};
  std::size_t kept_size = 0;
  for (std::size_t next = 0; next <= max - kMore.size();) {
    kept_size = next;
    next += std::max<std::size_t>(character_length(text.substr(next)), 1);
  }
  return std::string(text.substr(0, kept_size)) + std::string(kMore);
}

std::string_view whole_characters(std::string_view text, std::size_t max) {
  std::size_t end = std::min(text.size(), max);
  const auto splits_character = [&] {
    return end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;
  };
  for (int back = 0; back < 3 && end > 0 && splits_character(); ++back) --end;
  return text.substr(0, end);
}

std::string to_ascii(std::string_view bytes, std::size_t max) {
  std::string out(bytes.substr(0, max));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

std::string excerpt(std::string_view bytes, std::size_t max) {
  std::string out = to_ascii(bytes, max);
  if (bytes.size() > max) out += "...";
  const bool is_number = !out.empty() && out.find_first_not_of("0123456789.+-eE") == std::string::npos;
  return is_number ? out : '"' + out + '"';
}

}  // namespace mycojobs
