// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <string>
#include <string_view>

namespace mycojobs {

bool is_utf8(std::string_view bytes);
// Each byte that belongs to no character becomes U+FFFD.
std::string to_utf8(std::string_view bytes);
// At most `max` bytes of UTF-8, the last of them "..." if there were more; no character is parted.
std::string cut(std::string_view text, std::size_t max);
inline constexpr std::size_t kMostReasonBytes = 4096;  // of a reason that is stored or sent
// At most `max` bytes, what is not printable ASCII as '?'.
std::string ascii(std::string_view bytes, std::size_t max);
// The beginning of UTF-8 that has at most `max` bytes and parts no character.
std::string_view whole_characters(std::string_view text, std::size_t max);
// For error messages: at most `max` bytes, in quotes unless it is a number, what is not printable ASCII as '?'.
std::string shown(std::string_view bytes, std::size_t max = 40);

}  // namespace mycojobs
