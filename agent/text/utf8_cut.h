// Cuts UTF-8 between characters. Inline, because script hosts use these functions and do not link the domain library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace mycojobs {

inline bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns `bytes` without a character at the end whose last bytes are missing. Bytes that belong to no character stay.
inline std::string_view complete_characters(std::string_view bytes) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, bytes.size()); ++back) {
    const char first = bytes[bytes.size() - back];
    if (is_continuation_byte(first)) continue;
    const auto byte = static_cast<unsigned char>(first);
    const std::size_t length = byte > 0xF4 || byte < 0xC2 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return bytes.substr(0, bytes.size() - (length > back ? back : 0));
  }
  return bytes;
}

// Returns the first position from `offset` on where no character is split, at most three bytes later.
inline std::size_t character_boundary(std::string_view text, std::size_t offset) {
  for (int step = 0; step < 3 && offset < text.size() && is_continuation_byte(text[offset]); ++step) ++offset;
  return std::min(offset, text.size());
}

// Returns `text` without a byte order mark (U+FEFF) at its beginning.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

}  // namespace mycojobs
