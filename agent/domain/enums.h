// The words of an enum, in the order of its values: what a message about a wrong word lists.
#pragma once

#include <span>
#include <string_view>

namespace mycojobs {

template <class Enum>
std::span<const std::string_view> words();

}  // namespace mycojobs
