#include "text/timestamp.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "text/utf8.h"

namespace mycojobs {

Result<std::uint64_t> parse_time_ms(std::string_view text) {
  static constexpr const char* kForms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                           "%Y-%m-%d %H:%M"};
  const std::string copy(text);
  for (const char* form : kForms) {
    std::tm fields{};
    const char* end = ::strptime(copy.c_str(), form, &fields);
    if (end == nullptr) continue;
    const std::tm original = fields;
    std::time_t seconds = 0;
    if (*end == '\0') {
      fields.tm_isdst = -1;
      seconds = std::mktime(&fields);
    } else {
      std::tm zone{};
      end = ::strptime(end, "%z", &zone);  // Z, +02:00, +0200
      if (end == nullptr || *end != '\0') continue;
      seconds = ::timegm(&fields) - zone.tm_gmtoff;
    }
    if (fields.tm_mday != original.tm_mday || fields.tm_mon != original.tm_mon || seconds < 0) {
      return fail(Code::invalid, excerpt(text) + " is not a day of the calendar");
    }
    return static_cast<std::uint64_t>(seconds) * 1000;
  }
  return fail(
      Code::invalid,
      excerpt(text) + " is not a valid time: use 2030-01-31T12:00:00Z, or 2030-01-31 12:00 for this host's time zone");
}

std::string format_utc_time_ms(std::uint64_t unix_ms) {
  constexpr std::uint64_t kMaxSeconds = 253402300799;  // the end of the year 9999
  const auto seconds = static_cast<std::time_t>(std::min(unix_ms / 1000, kMaxSeconds));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), unix_ms % 1000);
}

std::string format_local_time(std::uint64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  return unix_ms == 0 ? "-" : fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

}  // namespace mycojobs
