// The names of the values of enums, as records and messages contain them.
#pragma once

#include <span>
#include <string_view>

namespace mycojobs {

// Returns the names in the order of the values.
template <class Enum>
std::span<const std::string_view> enum_names();

}  // namespace mycojobs
