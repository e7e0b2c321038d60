// The internal keys that `doctor --rebuild` cannot restore, with the effect of their loss. `verify` detects the loss of
// every other key in internal_keys(), and `doctor --rebuild` restores it. docs/protocol.md repeats this table.
#pragma once

#include <span>
#include <string_view>

namespace mycojobs {

struct KeyLossImpact {
  std::string_view pattern;  // InternalKey::pattern
  std::string_view meaning;  // effect of the loss, for users
};
std::span<const KeyLossImpact> key_losses();

}  // namespace mycojobs
