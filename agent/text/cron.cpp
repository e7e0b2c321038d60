// Cron expressions: parsing, the next time of an expression, and its description.
#include "text/cron.h"

#include <date/date.h>
#include <date/tz.h>
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <stdexcept>

#include "base/parse.h"
#include "text/split.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

constexpr std::size_t kMaxBytes = 1000;
constexpr std::array<std::string_view, 12> kMonths{"jan", "feb", "mar", "apr", "may", "jun",
                                                   "jul", "aug", "sep", "oct", "nov", "dec"};
constexpr std::array<std::string_view, 7> kWeekdays{"sun", "mon", "tue", "wed", "thu", "fri", "sat"};

struct FieldShape {
  std::string_view name, allowed;
  unsigned min, max;
  std::span<const std::string_view> names;
  unsigned first_name;
};
const std::array<FieldShape, 5> kShapes{{
    {"minute", "0 to 59", 0, 59, {}, 0},
    {"hour", "0 to 23", 0, 23, {}, 0},
    {"day of month", "1 to 31", 1, 31, {}, 0},
    {"month", "1 to 12 or jan to dec", 1, 12, kMonths, 1},
    {"day of week", "0 to 7 (0 and 7: Sunday) or sun to sat", 0, 7, kWeekdays, 0},
}};

constexpr std::string_view kWhitespace = " \t";

struct Macro {
  std::string_view name, fields;
};
constexpr std::array<Macro, 7> kMacros{{{"@hourly", "0 * * * *"},
                                        {"@daily", "0 0 * * *"},
                                        {"@midnight", "0 0 * * *"},
                                        {"@weekly", "0 0 * * 0"},
                                        {"@monthly", "0 0 1 * *"},
                                        {"@yearly", "0 0 1 1 *"},
                                        {"@annually", "0 0 1 1 *"}}};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> items;
  std::size_t from = 0;
  for (;;) {
    const std::size_t end = std::min(text.find(separator, from), text.size());
    items.emplace_back(text.substr(from, end - from));
    if (end == text.size()) return items;
    from = end + 1;
  }
}

tl::unexpected<Error> refuse(const FieldShape& shape, std::string_view item, const std::string& reason) {
  return fail(Code::invalid, std::string(shape.name) + ": " + excerpt(item) + ' ' + reason + "; allowed: " +
                                 std::string(shape.allowed) + ", lists (1,3), ranges (1-5), steps (*/2, 1-9/2) and *");
}

Result<unsigned> parse_value(const FieldShape& shape, const std::string& text, std::string_view item) {
  std::uint64_t number = 0;
  if (parse_u64(text, number)) {
    if (number < shape.min || number > shape.max) return refuse(shape, item, "is out of range");
    return static_cast<unsigned>(number);
  }
  std::string lower_case = text;
  std::transform(lower_case.begin(), lower_case.end(), lower_case.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
  const auto name = std::find(shape.names.begin(), shape.names.end(), lower_case);
  if (name == shape.names.end()) {
    return refuse(shape, item, "is not a number" + std::string(shape.names.empty() ? "" : " and no name"));
  }
  return shape.first_name + static_cast<unsigned>(name - shape.names.begin());
}

Result<std::uint64_t> parse_item(const FieldShape& shape, const std::string& item) {
  const auto halves = split(item, '/');
  std::uint64_t step = 1;
  if (halves.size() > 2) return refuse(shape, item, "has two steps");
  if (halves.size() == 2 && (!parse_u64(halves[1], step) || step == 0 || step > shape.max)) {
    return refuse(shape, item, "has a step that is not a number from 1 to " + std::to_string(shape.max));
  }
  unsigned first = shape.min;
  unsigned range_end = shape.names.size() == 7 ? 6 : shape.max;
  if (halves[0] != "*") {
    const auto ends = split(halves[0], '-');
    if (ends.size() > 2) return refuse(shape, item, "is not a range");
    MJ_TRY(from, parse_value(shape, ends[0], item));
    first = range_end = from;
    if (ends.size() == 2) {
      MJ_TRY(to, parse_value(shape, ends[1], item));
      range_end = to;
      // "fri-sun": Sunday is both the first and the last day of the week.
      if (shape.names.size() == 7 && range_end == 0 && first > 0) range_end = 7;
      if (range_end < first) return refuse(shape, item, "goes backwards: write two ranges");
    } else if (halves.size() == 2) {
      return refuse(shape, item,
                    "has a step but no range: write " + ends[0] + "-" + std::to_string(shape.max) + "/" + halves[1]);
    }
  }
  std::uint64_t bits = 0;
  for (std::uint64_t value = first; value <= range_end; value += step) bits |= 1ULL << value;
  return bits;
}

Result<std::uint64_t> parse_field(const FieldShape& shape, const std::string& text) {
  std::uint64_t bits = 0;
  for (const std::string& item : split(text, ',')) {
    if (item == "?" || item == "L" || item == "W" || item.find('#') != std::string::npos) {
      return refuse(shape, item, "is not a known name");
    }
    if (item.empty()) return refuse(shape, text, "has an empty part");
    MJ_TRY(item_bits, parse_item(shape, item));
    bits |= item_bits;
  }
  return bits;
}

// Returns whether some month of the expression has one of its days. February counts as in a leap year.
bool can_occur(const Cron& cron) {
  if (cron.any_day || !cron.any_weekday) return true;
  static constexpr std::array<unsigned, 13> kDays{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  for (unsigned month = 1; month <= 12; ++month) {
    const std::uint64_t days = (1ULL << (kDays[month] + 1)) - 1;
    if ((cron.months >> month & 1) != 0 && (cron.days & days) != 0) return true;
  }
  return false;
}

}  // namespace

Result<Cron> parse_cron(std::string_view text) {
  if (text.size() > kMaxBytes) return fail(Code::invalid, "is longer than " + std::to_string(kMaxBytes) + " bytes");
  std::vector<std::string> words = split_words(text, kWhitespace);
  if (words.size() == 1 && words[0].starts_with('@')) {
    const auto* macro =
        std::find_if(kMacros.begin(), kMacros.end(), [&](const Macro& entry) { return entry.name == words[0]; });
    if (macro == kMacros.end()) {
      std::vector<std::string_view> names;
      for (const Macro& entry : kMacros) names.push_back(entry.name);
      return fail(Code::invalid, excerpt(words[0]) + " is not one of @hourly, @daily, @weekly, @monthly and @yearly" +
                                     did_you_mean(words[0], names));
    }
    words = split_words(macro->fields);
  }
  if (words.size() != 5) {
    return fail(Code::invalid,
                excerpt(text, 80) + " has " + std::to_string(words.size()) +
                    (words.size() == 1 ? " field" : " fields") +
                    ", not 5: minute, hour, day of month, month, day of week, as in \"0 3 * * mon-fri\"" +
                    (words.size() > 5 ? " (there are no seconds and no years)" : ""));
  }
  Cron cron;
  cron.text = text;
  const std::array<std::uint64_t*, 5> sets{&cron.minutes, &cron.hours, &cron.days, &cron.months, &cron.weekdays};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    MJ_TRY(bits, parse_field(kShapes[i], words[i]));
    *sets[i] = bits;
  }
  cron.weekdays = (cron.weekdays | cron.weekdays >> 7) & 0x7f;
  cron.any_minute = words[0].starts_with('*');
  cron.any_hour = words[1].starts_with('*');
  cron.any_day = words[2].starts_with('*');
  cron.any_weekday = words[4].starts_with('*');
  if (!can_occur(cron)) {
    return fail(Code::invalid, excerpt(text, 80) + " never occurs: none of its months has this day of the month");
  }
  return cron;
}

// When a cron expression fires. This is the only file that uses Howard Hinnant's date library and handles its
// exceptions.

namespace {

using date::local_days;
using date::local_seconds;
using date::sys_seconds;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr int kMaxDays = 3653;                          // ten years
constexpr std::uint64_t kLastMs = 253'370'764'800'000;  // the year 9999

// Finds a zone by its name. Rejects "localtime": the database has this name, but it is a different zone on every host.
Result<const date::time_zone*> find_zone(const std::string& zone) {
  try {
    const date::tzdb& zones = date::get_tzdb();
    for (const auto& entry : zones.zones) {
      if (entry.name() == zone && zone != "localtime") return &entry;
    }
    std::vector<std::string_view> names;
    for (const auto& entry : zones.zones) names.emplace_back(entry.name());
    // Many users enter only the city.
    for (std::string_view name : names) {
      if (!zone.empty() && name.ends_with('/' + zone)) {
        return fail(Code::invalid,
                    excerpt(zone) + " is not a known time zone; did you mean \"" + std::string(name) + "\"?");
      }
    }
    const std::string guess = did_you_mean(zone, names);
    return fail(Code::invalid,
                excerpt(zone) + " is not a known time zone" +
                    (guess.empty() ? ": use a name of the IANA database, such as Europe/Berlin or UTC" : guess));
  } catch (const std::exception& error) {
    return fail(Code::unsupported,
                std::string("the time zones of this host cannot be read (install tzdata): ") + error.what());
  }
}

bool has_bit(std::uint64_t bits, unsigned value) { return (bits >> value & 1) != 0; }

bool is_matching_day(const Cron& cron, local_days day) {
  const date::year_month_day when(day);
  if (!has_bit(cron.months, static_cast<unsigned>(when.month()))) return false;
  const bool in_days = has_bit(cron.days, static_cast<unsigned>(when.day()));
  const bool in_weekdays = has_bit(cron.weekdays, date::weekday(day).c_encoding());
  return cron.any_day || cron.any_weekday ? in_days && in_weekdays : in_days || in_weekdays;
}

// Adds the times at which the clock of the zone shows local_time.
void add_times(const Cron& cron, const date::time_zone& zone, local_seconds local_time, std::vector<sys_seconds>& out) {
  const bool follows_clock = cron.any_hour || cron.any_minute;
  const date::local_info info = zone.get_info(local_time);
  switch (info.result) {
    case date::local_info::nonexistent:
      if (!follows_clock) out.push_back(info.second.begin);
      break;
    case date::local_info::ambiguous:
      out.push_back(sys_seconds(local_time.time_since_epoch() - info.first.offset));
      if (follows_clock) out.push_back(sys_seconds(local_time.time_since_epoch() - info.second.offset));
      break;
    default:
      out.push_back(sys_seconds(local_time.time_since_epoch() - info.first.offset));
  }
}

// Returns the first time of this local day after `start`, or `start` if there is none.
sys_seconds find_first_time_of_day(const Cron& cron, const date::time_zone& zone, local_days day, sys_seconds start) {
  // If the clock does not change around this day, one offset applies to the whole day.
  const date::local_info info = zone.get_info(local_seconds(day));
  const sys_seconds begin(local_seconds(day).time_since_epoch() - info.first.offset);
  const bool has_constant_offset = info.result == date::local_info::unique && begin - hours(24) > info.first.begin &&
                                   begin + hours(48) < info.first.end;
  std::vector<sys_seconds> times_of_day;
  for (unsigned hour = 0; hour < 24; ++hour) {
    if (!has_bit(cron.hours, hour) || (has_constant_offset && begin + hours(hour + 1) <= start)) continue;
    for (unsigned minute = 0; minute < 60; ++minute) {
      if (!has_bit(cron.minutes, minute)) continue;
      if (!has_constant_offset) {
        add_times(cron, zone, local_seconds(day) + hours(hour) + minutes(minute), times_of_day);
      } else if (const sys_seconds time = begin + hours(hour) + minutes(minute); time > start) {
        return time;
      }
    }
  }
  std::sort(times_of_day.begin(), times_of_day.end());
  const auto next = std::upper_bound(times_of_day.begin(), times_of_day.end(), start);
  return next == times_of_day.end() ? start : *next;
}

}  // namespace

Result<void> check_zone(const std::string& zone) {
  MJ_CHECK(find_zone(zone));
  return {};
}

Result<std::uint64_t> next_time(const Cron& cron, const std::string& zone, std::uint64_t after_ms) {
  MJ_TRY(time_zone, find_zone(zone));
  if (after_ms > kLastMs) return std::uint64_t{0};
  try {
    const auto start = std::chrono::floor<std::chrono::seconds>(sys_seconds() + milliseconds(after_ms));
    // Start one day earlier: if a clock goes back over midnight, the previous local day has not ended yet.
    local_days day = date::floor<date::days>(time_zone->to_local(start)) - date::days(1);
    for (int i = 0; i < kMaxDays; ++i, day += date::days(1)) {
      if (!is_matching_day(cron, day)) continue;
      const sys_seconds time = find_first_time_of_day(cron, *time_zone, day, start);
      if (time > start) return static_cast<std::uint64_t>(milliseconds(time.time_since_epoch()).count());
    }
    return std::uint64_t{0};
  } catch (const std::exception& error) {
    return fail(Code::unsupported, "time zone " + excerpt(zone) + ": " + error.what() + ": install tzdata again");
  }
}

std::string format_zoned_time(std::uint64_t ms, const std::string& zone) {
  const sys_seconds time(std::chrono::seconds(std::min(ms, kLastMs) / 1000));
  const auto in_utc = [time] { return date::format("%F %T UTC", time); };
  const auto time_zone = find_zone(zone);
  if (!time_zone) return in_utc();
  try {
    return date::format("%F %T %Z", date::make_zoned(*time_zone, time));
  } catch (const std::exception&) {  // the zone's file cannot be read
    return in_utc();
  }
}

namespace {

constexpr std::array<std::string_view, 7> kWeekdayNames{"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                        "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 13> kMonthNames{"",        "January",  "February", "March",  "April",
                                                       "May",     "June",     "July",     "August", "September",
                                                       "October", "November", "December"};

constexpr std::size_t kMaxTimes = 6;  // number of times that are listed individually

std::string format_two_digits(unsigned value) { return (value < 10 ? "0" : "") + std::to_string(value); }

std::vector<unsigned> list_values(std::uint64_t bits) {
  std::vector<unsigned> values;
  for (; bits != 0; bits &= bits - 1) values.push_back(static_cast<unsigned>(std::countr_zero(bits)));
  return values;
}

// Formats values as "1, 3 to 5". Three or more consecutive values form a range.
template <class Name>
std::string format_ranges(std::uint64_t bits, Name name) {
  const auto values = list_values(bits);
  std::string out;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t range_end = i;
    while (range_end + 1 < values.size() && values[range_end + 1] == values[range_end] + 1) ++range_end;
    if (range_end == i + 1) range_end = i;
    out += (out.empty() ? "" : ", ") + name(values[i]) + (range_end > i ? " to " + name(values[range_end]) : "");
    i = range_end + 1;
  }
  return out;
}
std::string format_numbers(std::uint64_t bits) {
  return format_ranges(bits, [](unsigned value) { return std::to_string(value); });
}

// Returns n if the bits are 0, n, 2n, ... below `end` and n divides `end`; otherwise 0.
unsigned find_step(std::uint64_t bits, unsigned end) {
  const auto values = list_values(bits);
  if (values.size() < 2 || values[0] != 0) return 0;
  const unsigned step = values[1];
  if (end % step != 0 || values.size() != end / step) return 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != i * step) return 0;
  }
  return step;
}

std::string format_times(const Cron& cron) {
  const auto at_hours = list_values(cron.hours);
  const auto at_minutes = list_values(cron.minutes);
  const unsigned step = find_step(cron.minutes, 60);
  const bool all_hours = at_hours.size() == 24;
  if (step != 0 && (all_hours || at_hours.size() * at_minutes.size() > kMaxTimes)) {
    const std::string interval_text = step == 1 ? "every minute" : "every " + std::to_string(step) + " minutes";
    return all_hours ? interval_text : interval_text + " of hour " + format_numbers(cron.hours);
  }
  if (all_hours) return "at minute " + format_numbers(cron.minutes) + " of every hour";
  if (at_hours.size() * at_minutes.size() > kMaxTimes) {
    const unsigned hour_step = find_step(cron.hours, 24);
    return "at minute " + format_numbers(cron.minutes) +
           (hour_step == 0 ? " of hour " + format_numbers(cron.hours)
                           : " of every " + std::to_string(hour_step) + " hours");
  }
  std::string out;
  for (unsigned hour : at_hours) {
    for (unsigned minute : at_minutes)
      out += (out.empty() ? "at " : ", ") + format_two_digits(hour) + ':' + format_two_digits(minute);
  }
  return out;
}

}  // namespace

std::string describe(const Cron& cron) {
  const bool all_days = cron.days == 0xfffffffe;
  const bool all_weekdays = cron.weekdays == 0x7f;
  const std::string days = "on day " + format_numbers(cron.days) + " of the month";
  const std::string weekdays =
      "on " + format_ranges(cron.weekdays, [](unsigned value) { return std::string(kWeekdayNames[value]); });
  std::string out = format_times(cron);
  const bool matches_either_day_field = !cron.any_day && !cron.any_weekday;
  if (matches_either_day_field && !all_days && !all_weekdays) {
    out += ' ' + days + " or " + weekdays;
  } else if (!matches_either_day_field || (!all_days && !all_weekdays)) {
    if (!all_days) out += ' ' + days;
    if (!all_days && !all_weekdays) out += ", if it is";
    if (!all_weekdays) out += ' ' + weekdays;
  }
  if (cron.months != 0x1ffe) {
    out += " in " + format_ranges(cron.months, [](unsigned value) { return std::string(kMonthNames[value]); });
  }
  return out;
}

}  // namespace mycojobs
