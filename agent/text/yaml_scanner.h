// Limits of a YAML text, checked before yaml-cpp parses it. yaml-cpp keeps all tokens of a flow collection ([...] and
// {...}) and of a line until it knows whether they are a key, which takes about 200 bytes for each byte of "[[[[". This
// scanner finds the same tokens by the same rules (Scanner of yaml-cpp 0.7 and later), but only counts them.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

struct YamlBounds {
  std::size_t max_nesting = 64;     // nesting of flow collections
  std::size_t max_nodes = 500'000;  // keys, scalars and collections
  // Nodes in one line or one flow collection, because yaml-cpp may keep all of them.
  std::size_t max_unconfirmed = 100'000;
  std::size_t max_directive_bytes = 1024;  // size of a line that begins with %
};

// Returns how many bytes of the text may be passed to yaml-cpp: up to the position at which yaml-cpp reports an error,
// or the whole text. Error invalid: "line 3, column 5: ..." (a limit is exceeded, or an anchor, alias or tag was
// found). REQUIRES: the text is UTF-8.
Result<std::size_t> scan_yaml(std::string_view text, const YamlBounds& = {});

}  // namespace mycojobs
