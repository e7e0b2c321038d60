// Durations and sizes as people write them. Errors say what to write instead; the caller says where it stood.
#pragma once

#include <cstdint>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

// "500ms", "30s", "5m", "2h", "1d" to milliseconds. A number without a unit is refused: nobody should have to guess.
Result<std::uint64_t> parse_duration_ms(std::string_view text);
// A duration that a field stores in seconds: "30s", "5m". One that is not a whole number of seconds, or is not from 1s
// to 49710d, is refused instead of being rounded.
Result<std::uint32_t> parse_duration_s(std::string_view text);
// "256MiB", "64KiB", "1GiB" or a bare number of bytes.
Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace mycojobs
