// Words of a text, as a full-text index has them: runs of letters, digits and marks in any script, normalized with NFKC
// and case folding (Unicode 15). Each Chinese or Japanese character is a word, because these scripts have no blanks.
// Thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::size_t kMaxWordBytes = 64;  // a longer word is indexed by its beginning

// Adds the words of the text. Bytes that are not UTF-8 separate words.
void add_words(std::string_view text, std::set<std::string>& words);

}  // namespace mycojobs
