// The words of a line.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

// Without the blanks that part them, however many those are; "": there are none.
inline std::vector<std::string> words_of(std::string_view text, std::string_view blanks = " ") {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(blanks, at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace mycojobs
