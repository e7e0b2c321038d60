// The words of enums. words() returns them in the order of the enum's values; messages about an unknown
// word list them.
#pragma once

#include <span>
#include <string_view>

namespace mycojobs {

template <class Enum>
std::span<const std::string_view> words();

}  // namespace mycojobs
