// Bounds of a YAML text, checked before yaml-cpp reads it. yaml-cpp holds all tokens of a flow collection ([...] and
// {...}) and of a line until it knows whether they are a key, about 200 bytes for each byte of "[[[[". This scanner
// finds the same tokens by the same rules (Scanner of yaml-cpp 0.7 and later), stores none of them, and counts.
#pragma once

#include <cstddef>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

struct YamlBounds {
  std::size_t max_nesting = 64;      // of flow collections
  std::size_t max_nodes = 500'000;   // keys, scalars and collections
  std::size_t max_held = 100'000;    // of these, of one line or one flow collection: yaml-cpp may hold them all
  std::size_t max_directive = 1024;  // bytes of a line that begins with %
};

// Returns how many bytes of the text yaml-cpp may be given: up to the place at which it refuses the text, or all of
// them. Errors invalid: "line 3, column 5: ..." (over a bound, or an anchor, an alias, a tag). The text is UTF-8.
Result<std::size_t> scan_yaml(std::string_view text, const YamlBounds& = {});

}  // namespace mycojobs
