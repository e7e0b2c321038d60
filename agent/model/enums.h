// The words of enums and error codes. words() returns them in the order of the enum's values; messages about an unknown
// word list them.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

template <class Enum>
std::span<const std::string_view> words();

std::string_view to_string(Code);  // "not_found"

}  // namespace mycojobs
