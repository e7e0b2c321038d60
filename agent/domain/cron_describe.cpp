#include <array>
#include <bit>

#include "domain/cron.h"

namespace mycojobs {
namespace {

constexpr std::array<std::string_view, 7> kWeekdayNames{"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                        "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 13> kMonthNames{"",        "January",  "February", "March",  "April",
                                                       "May",     "June",     "July",     "August", "September",
                                                       "October", "November", "December"};

constexpr std::size_t kMaxTimes = 6;  // that are told one by one

std::string two_digits(unsigned value) { return (value < 10 ? "0" : "") + std::to_string(value); }

std::vector<unsigned> values_of(std::uint64_t bits) {
  std::vector<unsigned> values;
  for (; bits != 0; bits &= bits - 1) values.push_back(static_cast<unsigned>(std::countr_zero(bits)));
  return values;
}

// "1, 3 to 5": three or more in a row are a range.
template <class Name>
std::string ranges(std::uint64_t bits, Name name) {
  const auto values = values_of(bits);
  std::string out;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t last = i;
    while (last + 1 < values.size() && values[last + 1] == values[last] + 1) ++last;
    if (last == i + 1) last = i;
    out += (out.empty() ? "" : ", ") + name(values[i]) + (last > i ? " to " + name(values[last]) : "");
    i = last + 1;
  }
  return out;
}
std::string numbers(std::uint64_t bits) {
  return ranges(bits, [](unsigned value) { return std::to_string(value); });
}

// n if it fires at 0, n, 2n ... below `end` and n divides it; 0: it does not.
unsigned step_of(std::uint64_t bits, unsigned end) {
  const auto values = values_of(bits);
  if (values.size() < 2 || values[0] != 0) return 0;
  const unsigned step = values[1];
  if (end % step != 0 || values.size() != end / step) return 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != i * step) return 0;
  }
  return step;
}

std::string times(const Cron& cron) {
  const auto hours = values_of(cron.hours);
  const auto minutes = values_of(cron.minutes);
  const unsigned step = step_of(cron.minutes, 60);
  const bool all_hours = hours.size() == 24;
  if (step != 0 && (all_hours || hours.size() * minutes.size() > kMaxTimes)) {
    const std::string often = step == 1 ? "every minute" : "every " + std::to_string(step) + " minutes";
    return all_hours ? often : often + " of hour " + numbers(cron.hours);
  }
  if (all_hours) return "at minute " + numbers(cron.minutes) + " of every hour";
  if (hours.size() * minutes.size() > kMaxTimes) {
    const unsigned every = step_of(cron.hours, 24);
    return "at minute " + numbers(cron.minutes) +
           (every == 0 ? " of hour " + numbers(cron.hours) : " of every " + std::to_string(every) + " hours");
  }
  std::string out;
  for (unsigned hour : hours) {
    for (unsigned minute : minutes) out += (out.empty() ? "at " : ", ") + two_digits(hour) + ':' + two_digits(minute);
  }
  return out;
}

}  // namespace

std::string describe(const Cron& cron) {
  const bool all_days = cron.days == 0xfffffffe;
  const bool all_weekdays = cron.weekdays == 0x7f;
  const std::string days = "on day " + numbers(cron.days) + " of the month";
  const std::string weekdays =
      "on " + ranges(cron.weekdays, [](unsigned value) { return std::string(kWeekdayNames[value]); });
  std::string out = times(cron);
  const bool either = !cron.any_day && !cron.any_weekday;
  if (either && !all_days && !all_weekdays) {
    out += ' ' + days + " or " + weekdays;
  } else if (!either || (!all_days && !all_weekdays)) {
    if (!all_days) out += ' ' + days;
    if (!all_days && !all_weekdays) out += ", if it is";
    if (!all_weekdays) out += ' ' + weekdays;
  }
  if (cron.months != 0x1ffe) {
    out += " in " + ranges(cron.months, [](unsigned value) { return std::string(kMonthNames[value]); });
  }
  return out;
}

}  // namespace mycojobs
