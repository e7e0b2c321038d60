// Fast path of parse_json() (text/json.h) for valid JSON: one pass that builds the same tree as the library.
// Thread-safe.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs {

// Returns false if the text is not JSON, nests deeper than max_depth, has a duplicate key in an object, or has
// something that this reader leaves to the library (a byte order mark, a whole number beyond 64 bits, a number out of
// range). `out` is then unspecified.
bool read_json_text(std::string_view text, std::size_t max_depth, nlohmann::json& out);

}  // namespace mycojobs
