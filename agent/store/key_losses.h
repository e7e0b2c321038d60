// The keys of our own that `doctor --rebuild` does not make again, and what their loss means. Every other key of
// own_keys() is found by `verify` when it is lost, and made again by `doctor --rebuild`. docs/protocol.md repeats the
// table.
#pragma once

#include <span>
#include <string_view>

namespace mycojobs {

struct KeyLoss {
  std::string_view pattern;  // of own_keys()
  std::string_view meaning;
};
std::span<const KeyLoss> key_losses();

}  // namespace mycojobs
