// UTF-8 as in RFC 3629: no overlong forms, no surrogates, no code points above U+10FFFF. Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace mycojobs {

bool is_utf8(std::string_view bytes);
// Replaces each byte that belongs to no character by U+FFFD.
std::string to_utf8(std::string_view bytes);
// Returns at most `max` bytes of UTF-8. A shortened text ends with "..."; no character is split.
std::string truncate_utf8(std::string_view text, std::size_t max);
inline constexpr std::size_t kMaxReasonBytes = 4096;  // maximum size of a reason that is stored or sent
// Returns at most `max` bytes, with '?' for everything except printable ASCII.
std::string to_ascii(std::string_view bytes, std::size_t max);
// Returns the longest prefix of UTF-8 with at most `max` bytes that does not split a character.
std::string_view whole_characters(std::string_view text, std::size_t max);
// Formats a value for an error message: at most `max` bytes, quoted unless it is a number, with '?' for everything
// except printable ASCII.
std::string excerpt(std::string_view bytes, std::size_t max = 40);

}  // namespace mycojobs
