// Conversions of hex, decimal and percent-encoded texts. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mycojobs {

std::string from_hex(std::string_view hex);              // returns an empty text if `hex` is not hex
bool is_hex(std::string_view text, std::size_t digits);  // exactly `digits` characters of 0-9, a-f
std::string to_hex(std::string_view bytes);
// Decodes "%20" and similar sequences; invalid sequences are kept.
std::string decode_percent(std::string_view text);
// Parses a decimal number that consists of digits only. Returns false for signs, blanks or an overflow.
bool parse_u64(std::string_view text, std::uint64_t& out);

}  // namespace mycojobs
