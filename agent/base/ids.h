// Random identifiers, from the kernel's generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mycojobs {

std::string random_hex(std::size_t bytes);  // 2 characters a byte
std::string random_bytes(std::size_t);
std::string from_hex(std::string_view hex);              // empty: it is none
bool is_hex(std::string_view text, std::size_t digits);  // so many of 0-9, a-f
std::string to_hex(std::string_view bytes);
// "%20" and the like as what they mean; what is none stays.
std::string percent_decoded(std::string_view text);
// Decimal text to a number; nothing but digits, no sign, no blanks, no overflow.
bool parse_u64(std::string_view text, std::uint64_t& out);

}  // namespace mycojobs
