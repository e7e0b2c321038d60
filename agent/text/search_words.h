// Splits a text into the words of a full-text index. A word is a sequence of letters, digits and marks in any script,
// normalized with NFKC and case folding (Unicode 15). Each Chinese or Japanese character is a word, because these
// scripts have no blanks. Thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::size_t kMaxWordBytes = 64;  // only the first bytes of a longer word are indexed

// Adds the words of the text to `words`. Bytes that are not UTF-8 separate words.
void add_search_words(std::string_view text, std::set<std::string>& words);

}  // namespace mycojobs
