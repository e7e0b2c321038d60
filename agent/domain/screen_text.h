// What a stranger wrote, for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mycojobs {

// Control characters but line ends and tabs become '?', and so do marks that turn the direction of writing.
std::string printable(std::string_view text);
std::string one_line(std::string_view text);  // the same, and line ends and tabs become blanks

// Columns that a terminal shows of it: wide characters take two, marks and colour codes none.
std::size_t columns(std::string_view text);
// At most so many columns, the last one then `more`. Valid UTF-8 without colour codes.
std::string shortened(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");
// The same of what we say, but for commands (in `...`): those that would be cut follow whole, however long it gets.
std::string shortened_talk(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");

}  // namespace mycojobs
