// When a cron expression fires: the one file that meets Howard Hinnant's date and what it throws.
#include <date/date.h>
#include <date/tz.h>

#include <algorithm>
#include <stdexcept>

#include "domain/cron.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using date::local_days;
using date::local_seconds;
using date::sys_seconds;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr int kMaxDays = 3653;                          // ten years
constexpr std::uint64_t kLastMs = 253'370'764'800'000;  // the year 9999

// "localtime" is a name of that database too, but another zone on every host.
Result<const date::time_zone*> find_zone(const std::string& zone) {
  try {
    const date::tzdb& zones = date::get_tzdb();
    for (const auto& each : zones.zones) {
      if (each.name() == zone && zone != "localtime") return &each;
    }
    std::vector<std::string_view> names;
    for (const auto& each : zones.zones) names.emplace_back(each.name());
    // A city alone is how many people begin.
    for (std::string_view name : names) {
      if (!zone.empty() && name.ends_with('/' + zone)) {
        return fail(Code::invalid, shown(zone) + " is no time zone; did you mean \"" + std::string(name) + "\"?");
      }
    }
    const std::string guess = did_you_mean(zone, names);
    return fail(Code::invalid,
                shown(zone) + " is no time zone" +
                    (guess.empty() ? ": give a name of the IANA database, such as Europe/Berlin or UTC" : guess));
  } catch (const std::exception& error) {
    return fail(Code::unsupported,
                std::string("the time zones of this host cannot be read (install tzdata): ") + error.what());
  }
}

bool has(std::uint64_t bits, unsigned value) { return (bits >> value & 1) != 0; }

bool is_day(const Cron& cron, local_days day) {
  const date::year_month_day when(day);
  if (!has(cron.months, static_cast<unsigned>(when.month()))) return false;
  const bool in_days = has(cron.days, static_cast<unsigned>(when.day()));
  const bool in_weekdays = has(cron.weekdays, date::weekday(day).c_encoding());
  return cron.any_day || cron.any_weekday ? in_days && in_weekdays : in_days || in_weekdays;
}

// The moments at which the clock of the zone shows this.
void add_moments(const Cron& cron, const date::time_zone& zone, local_seconds shows, std::vector<sys_seconds>& out) {
  const bool follows_clock = cron.any_hour || cron.any_minute;
  const date::local_info info = zone.get_info(shows);
  switch (info.result) {
    case date::local_info::nonexistent:
      if (!follows_clock) out.push_back(info.second.begin);
      break;
    case date::local_info::ambiguous:
      out.push_back(sys_seconds(shows.time_since_epoch() - info.first.offset));
      if (follows_clock) out.push_back(sys_seconds(shows.time_since_epoch() - info.second.offset));
      break;
    default:
      out.push_back(sys_seconds(shows.time_since_epoch() - info.first.offset));
  }
}

// The first moment of this local day after `after`; none: `after`.
sys_seconds first_of_day(const Cron& cron, const date::time_zone& zone, local_days day, sys_seconds after) {
  // Far from any change of the clock one offset serves the whole day.
  const date::local_info info = zone.get_info(local_seconds(day));
  const sys_seconds begin(local_seconds(day).time_since_epoch() - info.first.offset);
  const bool plain = info.result == date::local_info::unique && begin - hours(24) > info.first.begin &&
                     begin + hours(48) < info.first.end;
  std::vector<sys_seconds> moments;
  for (unsigned hour = 0; hour < 24; ++hour) {
    if (!has(cron.hours, hour) || (plain && begin + hours(hour + 1) <= after)) continue;
    for (unsigned minute = 0; minute < 60; ++minute) {
      if (!has(cron.minutes, minute)) continue;
      if (!plain) {
        add_moments(cron, zone, local_seconds(day) + hours(hour) + minutes(minute), moments);
      } else if (const sys_seconds moment = begin + hours(hour) + minutes(minute); moment > after) {
        return moment;
      }
    }
  }
  std::sort(moments.begin(), moments.end());
  const auto found = std::upper_bound(moments.begin(), moments.end(), after);
  return found == moments.end() ? after : *found;
}

}  // namespace

Result<void> check_zone(const std::string& zone) {
  MJ_CHECK(find_zone(zone));
  return {};
}

Result<std::uint64_t> next_moment(const Cron& cron, const std::string& zone, std::uint64_t after_ms) {
  MJ_TRY(found, find_zone(zone));
  if (after_ms > kLastMs) return std::uint64_t{0};
  try {
    const auto after = std::chrono::floor<std::chrono::seconds>(sys_seconds() + milliseconds(after_ms));
    // The day before: where a clock goes back over midnight, it is not over yet.
    local_days day = date::floor<date::days>(found->to_local(after)) - date::days(1);
    for (int i = 0; i < kMaxDays; ++i, day += date::days(1)) {
      if (!is_day(cron, day)) continue;
      const sys_seconds moment = first_of_day(cron, *found, day, after);
      if (moment > after) return static_cast<std::uint64_t>(milliseconds(moment.time_since_epoch()).count());
    }
    return std::uint64_t{0};
  } catch (const std::exception& error) {
    return fail(Code::unsupported, "time zone " + shown(zone) + ": " + error.what() + ": install tzdata again");
  }
}

std::string moment_text(std::uint64_t ms, const std::string& zone) {
  const sys_seconds moment(std::chrono::seconds(std::min(ms, kLastMs) / 1000));
  const auto in_utc = [moment] { return date::format("%F %T UTC", moment); };
  const auto found = find_zone(zone);
  if (!found) return in_utc();
  try {
    return date::format("%F %T %Z", date::make_zoned(*found, moment));
  } catch (const std::exception&) {  // its file cannot be read
    return in_utc();
  }
}

}  // namespace mycojobs
