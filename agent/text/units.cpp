#include "text/units.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};
constexpr Unit kTimes[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}};
constexpr Unit kSizes[] = {{"", 1}, {"KiB", 1ULL << 10}, {"MiB", 1ULL << 20}, {"GiB", 1ULL << 30}, {"TiB", 1ULL << 40}};

Result<std::uint64_t> parse_units(std::string_view text, std::span<const Unit> units, std::string_view expected_form) {
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view suffix = text.substr(digits);
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const Unit& candidate) { return candidate.name == suffix; });
  if (digits == 0 || unit == units.end())
    return fail(Code::invalid, excerpt(text) + " is not " + std::string(expected_form));
  std::uint64_t number = 0;
  if (!parse_u64(text.substr(0, digits), number) || number > std::numeric_limits<std::uint64_t>::max() / unit->factor) {
    return fail(Code::invalid, excerpt(text) + " is too large");
  }
  return number * unit->factor;
}

}  // namespace

Result<std::uint64_t> parse_duration_ms(std::string_view text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos) {
    return fail(Code::invalid, std::string(text.substr(0, 20)) + " has no unit: write " +
                                   std::string(text.substr(0, 20)) + "s for seconds (units: ms, s, m, h, d)");
  }
  return parse_units(text, kTimes, "a duration: write a whole number and a unit, such as 500ms, 30s, 5m, 2h or 1d");
}

Result<std::uint32_t> parse_duration_s(std::string_view text) {
  MJ_TRY(ms, parse_duration_ms(text));
  if (ms == 0 || ms / 1000 >= std::numeric_limits<std::uint32_t>::max()) {
    return fail(Code::invalid, excerpt(text) + " is out of range: give 1s to 49710d");
  }
  if (ms % 1000 != 0) {
    return fail(Code::invalid, excerpt(text) + " is not a whole number of seconds: give 1s to 49710d");
  }
  return static_cast<std::uint32_t>(ms / 1000);
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  return parse_units(text, kSizes, "a size: write bytes, or a whole number with KiB, MiB or GiB, such as 256MiB");
}

}  // namespace mycojobs
