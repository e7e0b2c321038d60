// Percent-encoding of URLs (RFC 3986) and of parameters of headers (RFC 8187).
#pragma once

#include <string>
#include <string_view>

namespace mycojobs {

// Encodes each byte that is neither an ASCII letter or digit nor one of `plain_characters`.
inline std::string percent_encode(std::string_view text, std::string_view plain_characters) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          plain_characters.find(c) != std::string_view::npos;
    if (is_plain) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return encoded;
}

}  // namespace mycojobs
