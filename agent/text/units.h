// Durations and sizes as people write them. Errors name the text to write instead, without the position of the value.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

// Converts "500ms", "30s", "5m", "2h", "1d" to milliseconds. A number without a unit is rejected as ambiguous.
Result<std::uint64_t> parse_duration_ms(std::string_view text);
// Parses a duration that a field stores in seconds: "30s", "5m". Rejects a duration that is not a whole number of
// seconds, or is not from 1s to 49710d.
Result<std::uint32_t> parse_duration_s(std::string_view text);
// Parses "256MiB", "64KiB", "1GiB" or a number of bytes.
Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace mycojobs
