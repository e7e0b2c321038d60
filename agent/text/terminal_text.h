// Formats untrusted text for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mycojobs {

// Replaces control characters except line ends and tabs, marks that change the writing direction, and bytes that are
// not UTF-8 by '?'.
std::string to_printable(std::string_view text);
// Like to_printable(), but keeps colour codes. Used for text that is partly written by this program.
std::string to_printable_with_colours(std::string_view text);
// Like to_printable(), and replaces line ends and tabs by blanks.
std::string to_printable_line(std::string_view text);

// Applies to_printable() to text that arrives in pieces of any size. A line that is restarted (a lone "\r") becomes a
// new line.
class PrintableTextStream {
 public:
  std::string add(std::string_view bytes);  // returns the printable form of the complete characters and lines so far
  std::string finish();  // returns the printable form of the incomplete rest; call it at the end of the text

 private:
  std::string incomplete_;  // an incomplete character or line end
};

// Returns the number of columns on a terminal: wide characters take two, combining marks and colour codes none.
std::size_t count_columns(std::string_view text);
// Breaks the text at blanks into lines of at most `width` columns. A longer word gets a line of its own.
std::string wrap_text(std::string_view text, std::size_t width);
// Shortens the text to at most max_columns; a shortened text ends with `ellipsis`. REQUIRES: valid UTF-8 without colour
// codes.
std::string shorten_text(std::string_view text, std::size_t max_columns, std::string_view ellipsis = "\xE2\x80\xA6");
// shorten_text() for messages of this program. Commands (in `...`) that would be cut are appended in full, even beyond
// max_columns.
std::string shorten_message(std::string_view text, std::size_t max_columns, std::string_view ellipsis = "\xE2\x80\xA6");

}  // namespace mycojobs
