// What is written: fields, names, ranges, steps. What it means in a zone: cron_moments.cpp.
#include "domain/cron.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "base/ids.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxBytes = 1000;
constexpr std::array<std::string_view, 12> kMonths{"jan", "feb", "mar", "apr", "may", "jun",
                                                   "jul", "aug", "sep", "oct", "nov", "dec"};
constexpr std::array<std::string_view, 7> kWeekdays{"sun", "mon", "tue", "wed", "thu", "fri", "sat"};

struct FieldShape {
  std::string_view name, allowed;
  unsigned least, most;
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

std::vector<std::string> split(std::string_view text, std::string_view at) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (;;) {
    const std::size_t end = std::min(text.find_first_of(at, from), text.size());
    parts.emplace_back(text.substr(from, end - from));
    if (end == text.size()) return parts;
    from = end + 1;
  }
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words = split(text, " \t");
  std::erase(words, "");
  return words;
}

tl::unexpected<Error> refuse(const FieldShape& shape, std::string_view part, const std::string& why) {
  return fail(Code::invalid, std::string(shape.name) + ": " + shown(part) + ' ' + why + "; allowed: " +
                                 std::string(shape.allowed) + ", lists (1,3), ranges (1-5), steps (*/2, 1-9/2) and *");
}

Result<unsigned> read_value(const FieldShape& shape, const std::string& text, std::string_view part) {
  std::uint64_t number = 0;
  if (parse_u64(text, number)) {
    if (number < shape.least || number > shape.most) return refuse(shape, part, "is out of range");
    return static_cast<unsigned>(number);
  }
  std::string low = text;
  std::transform(low.begin(), low.end(), low.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
  const auto found = std::find(shape.names.begin(), shape.names.end(), low);
  if (found == shape.names.end()) {
    return refuse(shape, part, "is no number" + std::string(shape.names.empty() ? "" : " and no name"));
  }
  return shape.first_name + static_cast<unsigned>(found - shape.names.begin());
}

Result<std::uint64_t> read_part(const FieldShape& shape, const std::string& part) {
  const auto halves = split(part, "/");
  std::uint64_t step = 1;
  if (halves.size() > 2) return refuse(shape, part, "has two steps");
  if (halves.size() == 2 && (!parse_u64(halves[1], step) || step == 0 || step > shape.most)) {
    return refuse(shape, part, "has a step that is no number from 1 to " + std::to_string(shape.most));
  }
  unsigned first = shape.least;
  unsigned last = shape.names.size() == 7 ? 6 : shape.most;
  if (halves[0] != "*") {
    const auto ends = split(halves[0], "-");
    if (ends.size() > 2) return refuse(shape, part, "is no range");
    MJ_TRY(from, read_value(shape, ends[0], part));
    first = last = from;
    if (ends.size() == 2) {
      MJ_TRY(to, read_value(shape, ends[1], part));
      last = to;
      // "fri-sun": Sunday ends the week as well as it begins it.
      if (shape.names.size() == 7 && last == 0 && first > 0) last = 7;
      if (last < first) return refuse(shape, part, "goes backwards: write two ranges");
    } else if (halves.size() == 2) {
      return refuse(shape, part,
                    "has a step but no range: write " + ends[0] + "-" + std::to_string(shape.most) + "/" + halves[1]);
    }
  }
  std::uint64_t bits = 0;
  for (std::uint64_t value = first; value <= last; value += step) bits |= 1ULL << value;
  return bits;
}

Result<std::uint64_t> read_field(const FieldShape& shape, const std::string& text) {
  std::uint64_t bits = 0;
  for (const std::string& part : split(text, ",")) {
    if (part == "?" || part == "L" || part == "W" || part.find('#') != std::string::npos) {
      return refuse(shape, part, "is not known here");
    }
    if (part.empty()) return refuse(shape, text, "has an empty part");
    MJ_TRY(more, read_part(shape, part));
    bits |= more;
  }
  return bits;
}

// Days that some year has: of February 29.
bool comes_ever(const Cron& cron) {
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
  std::vector<std::string> words = words_of(text);
  if (words.size() == 1 && words[0].starts_with('@')) {
    const auto* macro =
        std::find_if(kMacros.begin(), kMacros.end(), [&](const Macro& each) { return each.name == words[0]; });
    if (macro == kMacros.end()) {
      std::vector<std::string_view> names;
      for (const Macro& each : kMacros) names.push_back(each.name);
      return fail(Code::invalid, shown(words[0]) + " is none of @hourly, @daily, @weekly, @monthly and @yearly" +
                                     did_you_mean(words[0], names));
    }
    words = words_of(macro->fields);
  }
  if (words.size() != 5) {
    return fail(Code::invalid,
                shown(text, 80) + " has " + std::to_string(words.size()) + (words.size() == 1 ? " field" : " fields") +
                    ", not 5: minute, hour, day of month, month, day of week, as in \"0 3 * * mon-fri\"" +
                    (words.size() > 5 ? " (there are no seconds and no years)" : ""));
  }
  Cron cron;
  cron.text = text;
  const std::array<std::uint64_t*, 5> sets{&cron.minutes, &cron.hours, &cron.days, &cron.months, &cron.weekdays};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    MJ_TRY(bits, read_field(kShapes[i], words[i]));
    *sets[i] = bits;
  }
  cron.weekdays = (cron.weekdays | cron.weekdays >> 7) & 0x7f;
  cron.any_minute = words[0].starts_with('*');
  cron.any_hour = words[1].starts_with('*');
  cron.any_day = words[2].starts_with('*');
  cron.any_weekday = words[4].starts_with('*');
  if (!comes_ever(cron)) {
    return fail(Code::invalid, shown(text, 80) + " never comes: none of its months has such a day of month");
  }
  return cron;
}

}  // namespace mycojobs
