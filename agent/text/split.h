// Splits text into lines and words.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

// Returns the text without spaces and tabs at its ends.
inline std::string_view trim_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Removes the first line from the text, and returns it without its line end: LF, CR LF, or the end of the text.
inline std::string_view pop_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Returns the words without the blanks between them. A text without words gives an empty list.
inline std::vector<std::string> split_words(std::string_view text, std::string_view blanks = " ") {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(blanks, begin), text.size());
    if (end > begin) words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Returns true if the word is one of the words of the list, which are separated by blanks.
inline bool contains_word(std::string_view list, std::string_view word) {
  const std::vector<std::string> words = split_words(list);
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace mycojobs
