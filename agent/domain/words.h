// Words of a text, as the full-text index has them: runs of letters, digits and marks in any script, compatibility
// forms unified and case folded (NFKC with case folding, as Unicode 15 has it). A character of Chinese or Japanese
// writing, which has no blanks, is a word by itself.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::size_t kMaxWordBytes = 64;  // a longer one counts by its beginning

// Adds the words of text. Bytes that are not UTF-8 separate words.
void add_words(std::string_view text, std::set<std::string>& words);

}  // namespace mycojobs
