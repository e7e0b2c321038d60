// The way of parse_json() (codec.h) that well-made JSON takes: one pass, into the same tree as the library's.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs {

// False: the text is no JSON, or nests deeper than max_depth, or has a key twice in one object, or something that this
// reader leaves to the library (a byte order mark, a whole number beyond 64 bits, a number out of range). `out` then
// holds anything.
bool read_json_text(std::string_view text, std::size_t max_depth, nlohmann::json& out);

}  // namespace mycojobs
