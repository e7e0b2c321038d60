// Formats untrusted text for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mycojobs {

// Replaces control characters except line ends and tabs, marks that change the writing direction, and bytes that are
// not UTF-8 by '?'.
std::string printable(std::string_view text);
// As printable(), but keeps colour codes: for text that is partly our own.
std::string printable_with_colours(std::string_view text);
std::string one_line(std::string_view text);  // as printable(), and line ends and tabs become blanks

// printable() for text that arrives in pieces of any size. A line that is restarted (a lone "\r") becomes a new line.
class ScreenText {
 public:
  std::string take(std::string_view bytes);
  std::string rest();  // ends the text

 private:
  std::string incomplete_;  // an incomplete character or line end
};

// Returns the number of columns on a terminal: wide characters take two, combining marks and colour codes none.
std::size_t columns(std::string_view text);
// Breaks the text at blanks into lines of at most `width` columns. A longer word gets a line of its own.
std::string wrapped(std::string_view text, std::size_t width);
// Shortens the text to at most max_columns; a shortened text ends with `more`. REQUIRES: valid UTF-8 without colour
// codes.
std::string shortened(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");
// shortened() for our own messages. Commands (in `...`) that would be cut are appended in full, even beyond
// max_columns.
std::string shorten_message(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");

}  // namespace mycojobs
