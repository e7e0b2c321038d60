// The words of an enum, in the order of its values: what a message about a wrong word lists. And of an error's code.
#pragma once

#include <span>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

template <class Enum>
std::span<const std::string_view> words();

std::string_view word(Code);  // "not_found"

}  // namespace mycojobs
