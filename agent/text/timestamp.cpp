#include "text/timestamp.h"

#include <fmt/chrono.h>

#include <ctime>
#include <string>

#include "text/utf8.h"

namespace mycojobs {

Result<std::uint64_t> parse_time_ms(std::string_view text) {
  static constexpr const char* kForms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                           "%Y-%m-%d %H:%M"};
  const std::string written(text);
  for (const char* form : kForms) {
    std::tm parts{};
    const char* rest = ::strptime(written.c_str(), form, &parts);
    if (rest == nullptr) continue;
    const std::tm asked = parts;
    std::time_t seconds = 0;
    if (*rest == '\0') {
      parts.tm_isdst = -1;
      seconds = std::mktime(&parts);
    } else {
      std::tm zone{};
      rest = ::strptime(rest, "%z", &zone);  // Z, +02:00, +0200
      if (rest == nullptr || *rest != '\0') continue;
      seconds = ::timegm(&parts) - zone.tm_gmtoff;
    }
    if (parts.tm_mday != asked.tm_mday || parts.tm_mon != asked.tm_mon || seconds < 0) {
      return fail(Code::invalid, excerpt(text) + " is not a day of the calendar");
    }
    return static_cast<std::uint64_t>(seconds) * 1000;
  }
  return fail(
      Code::invalid,
      excerpt(text) + " is not a valid time: use 2030-01-31T12:00:00Z, or 2030-01-31 12:00 for this host's time zone");
}

std::string local_time(std::uint64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  return unix_ms == 0 ? "-" : fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

}  // namespace mycojobs
