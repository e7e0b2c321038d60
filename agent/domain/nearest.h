// What somebody may have meant who wrote a name that is not there.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mycojobs {

// The candidate with the fewest slips between it and the name (a letter more, less, other, or two swapped; capitals do
// not count), the first of equals; empty: none is near. At most a slip for each three letters, and three.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);
// "; did you mean \"needs\"?", or nothing.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace mycojobs
