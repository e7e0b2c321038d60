// Conversion between points in time and their text form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

// Parses "2030-01-31T12:00:00Z", "2030-01-31 12:00 +02:00" or, in this host's time zone, "2030-01-31 12:00" into Unix
// milliseconds. Seconds are optional.
Result<std::uint64_t> parse_time_ms(std::string_view text);
std::string format_utc_time_ms(std::uint64_t unix_ms);  // "2030-01-31T12:00:00.123Z"
std::string format_local_time(std::uint64_t unix_ms);   // "2030-01-31 12:00:00" in this host's time zone; "-" for 0

}  // namespace mycojobs
