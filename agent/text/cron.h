// Cron expressions: five fields (minute, hour, day of month, month, day of week) with names (mon, jan), lists, ranges
// and steps, and @hourly, @daily, @weekly, @monthly, @yearly. As in Vixie cron, if both day fields are restricted, a
// match of either suffices. Times are in a zone (IANA name). A time that daylight saving skips fires at the moment when
// the clock has jumped; a time that occurs twice fires only the first time. If the minute or hour is a wildcard, the
// expression follows the clock: a skipped time does not fire, and a repeated time fires twice. Zones are read from the
// system's tz database in /usr/share/zoneinfo, whose tables of daylight saving end in 2037. Pure, except that zones are
// read from files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs {

struct Cron {
  std::uint64_t minutes = 0, hours = 0, days = 0, months = 0, weekdays = 0;  // bit sets
  bool any_day = false, any_weekday = false, any_hour = false, any_minute = false;
  std::string text;
};
// Error invalid: names the field, the problem and the allowed values. An expression that never fires (31 February) is
// invalid.
Result<Cron> parse_cron(std::string_view text);
// Error invalid: not an IANA name; the message names the nearest one.
Result<void> check_zone(const std::string& zone);
// Returns the first time after `after_ms` (Unix ms), or 0 if there is none within 10 years.
Result<std::uint64_t> next_time(const Cron&, const std::string& zone, std::uint64_t after_ms);
std::string describe(const Cron&);  // "at 03:00 on Monday"
// Returns "2026-11-23 03:00:00 CET". Uses UTC if the zone does not exist.
std::string format_zoned_time(std::uint64_t ms, const std::string& zone);

}  // namespace mycojobs
