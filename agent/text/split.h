// Splits a line into words.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

// Returns the words without the blanks between them. A text without words gives an empty list.
inline std::vector<std::string> split_words(std::string_view text, std::string_view blanks = " ") {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(blanks, at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace mycojobs
