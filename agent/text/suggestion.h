// Suggestions for misspelled names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mycojobs {

// Returns the candidate with the smallest edit distance (insertion, deletion, substitution or transposition of a
// letter; case is ignored), the first among equals, or an empty text. The distance is at most 3, and at most one per
// three letters.
std::string_view find_nearest(std::string_view name, std::span<const std::string_view> candidates);
// Returns "; did you mean \"needs\"?", or an empty text.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace mycojobs
