// What a stranger wrote, for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mycojobs {

// Control characters but line ends and tabs become '?', and so do marks that turn the direction of writing and bytes
// that are no UTF-8.
std::string printable(std::string_view text);
std::string but_for_colours(std::string_view text);  // the same, but codes of colours stay: for what is ours in part
std::string one_line(std::string_view text);         // the same, and line ends and tabs become blanks

// The same for what comes in pieces, cut anywhere. A line that is begun again (a lone "\r") becomes a new line.
class ScreenText {
 public:
  std::string take(std::string_view bytes);
  std::string rest();  // nothing more comes

 private:
  std::string held_;  // of a character or line end that has only begun
};

// Columns that a terminal shows of it: wide characters take two, marks and colour codes none.
std::size_t columns(std::string_view text);
// Broken at blanks into lines of so many columns; a word that is longer has a line of its own.
std::string wrapped(std::string_view text, std::size_t width);
// At most so many columns, the last one then `more`. Valid UTF-8 without colour codes.
std::string shortened(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");
// The same of what we say, but for commands (in `...`): those that would be cut follow whole, however long it gets.
std::string shortened_talk(std::string_view text, std::size_t max_columns, std::string_view more = "\xE2\x80\xA6");

}  // namespace mycojobs
