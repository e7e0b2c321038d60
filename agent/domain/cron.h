// Cron expressions: five fields (minute hour day-of-month month day-of-week), names (mon, jan), lists, ranges, steps,
// and @hourly @daily @weekly @monthly @yearly. As in Vixie cron: if both days are restricted, either suffices. In a
// zone (IANA name): a moment that daylight saving skips fires at the moment when the clock has jumped; one that comes
// twice fires once, the first time. If its minute or hour is a wildcard, it follows the clock: what is skipped does not
// fire, what comes twice fires twice. The zones are those of the system's tz database, /usr/share/zoneinfo, whose
// tables of daylight saving end in 2037. Pure but for reading them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

struct Cron {
  std::uint64_t minutes = 0, hours = 0, days = 0, months = 0, weekdays = 0;  // bit sets
  bool any_day = false, any_weekday = false, any_hour = false, any_minute = false;
  std::string text;
};
// Error invalid: names the field, what is wrong and what is allowed; also one that never comes (31 February).
Result<Cron> parse_cron(std::string_view text);
Result<void> check_zone(const std::string& zone);  // invalid: not an IANA name (the nearest one is named)
// The first moment after `after_ms` (Unix ms); 0: none within 10 years.
Result<std::uint64_t> next_moment(const Cron&, const std::string& zone, std::uint64_t after_ms);
std::string describe(const Cron&);  // "at 03:00 on Monday"
// "2026-11-23 03:00:00 CET"; in UTC if there is no such zone.
std::string moment_text(std::uint64_t ms, const std::string& zone);

}  // namespace mycojobs
