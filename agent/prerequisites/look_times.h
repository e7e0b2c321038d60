// How long what was seen outside counts, and a look may take.
#pragma once

#include <cstdint>

namespace mycojobs {

constexpr std::uint64_t kLookMs = 3000;  // then the answer is no
// A yes counts for longer than a look takes: of several conditions the first one still counts when the last has been
// seen.
constexpr std::uint64_t kYesMs = 5000, kNoMs = 1000;

}  // namespace mycojobs
