#include "model/prerequisite.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>

#include "base/parse.h"
#include "model/records.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using Kind = Condition::Kind;

struct Scheme {
  std::string_view prefix;
  Kind kind;
  bool requires_permission;  // prerequisites.allow must permit it
};
constexpr std::array<Scheme, 9> kSchemes{{
    {"wait:", Kind::wait, false},
    {"at:", Kind::at, false},
    {"redis:", Kind::redis, false},
    {"approval:", Kind::approval, false},
    {"flow:", Kind::flow, false},
    {"file:", Kind::file, true},
    {"tcp:", Kind::tcp, true},
    {"http://", Kind::http, true},
    {"https://", Kind::http, true},
}};

const Scheme* find_scheme(std::string_view text) {
  const auto* match = std::find_if(kSchemes.begin(), kSchemes.end(),
                                   [&](const Scheme& scheme) { return text.starts_with(scheme.prefix); });
  return match == kSchemes.end() ? nullptr : match;
}

std::string quote_prerequisite(std::string_view text) { return "prerequisite " + excerpt(text, 200); }
tl::unexpected<Error> make_invalid_error(std::string_view text, const std::string& problem) {
  return fail(Code::invalid, quote_prerequisite(text) + ": " + problem);
}

// Checks the date, because timegm would accept the 31st of June.
bool is_date(int year, int month, int day) {
  static constexpr std::array<int, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1970 || month < 1 || month > 12 || day < 1) return false;
  const bool is_leap_year = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return day <= kDays[static_cast<std::size_t>(month) - 1] + (month == 2 && is_leap_year ? 1 : 0);
}

// Returns the number at this position. REQUIRES: the text has digits there.
int parse_digits(std::string_view text, std::size_t position, std::size_t size) {
  int number = 0;
  for (char c : text.substr(position, size)) number = number * 10 + (c - '0');
  return number;
}

// Parses RFC 3339: 2026-11-21T10:00:00Z, with fractions of a second, or an offset instead of the Z.
std::optional<std::uint64_t> parse_rfc3339(std::string text) {
  for (char& c : text) c = c == 't' ? 'T' : c == 'z' ? 'Z' : c;
  static constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (text.size() <= kShape.size()) return std::nullopt;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != kShape[i]) return std::nullopt;
  }
  std::tm date{};
  date.tm_year = parse_digits(text, 0, 4);
  date.tm_mon = parse_digits(text, 5, 2);
  date.tm_mday = parse_digits(text, 8, 2);
  date.tm_hour = parse_digits(text, 11, 2);
  date.tm_min = parse_digits(text, 14, 2);
  date.tm_sec = parse_digits(text, 17, 2);
  if (!is_date(date.tm_year, date.tm_mon, date.tm_mday) || date.tm_hour > 23 || date.tm_min > 59 || date.tm_sec > 60) {
    return std::nullopt;
  }
  std::string_view suffix = std::string_view(text).substr(kShape.size());
  std::uint64_t fraction_ms = 0;
  if (suffix.starts_with('.')) {
    suffix.remove_prefix(1);
    const std::size_t digits = std::min(suffix.find_first_not_of("0123456789"), suffix.size());
    const std::string thousandths = (std::string(suffix.substr(0, digits)) + "000").substr(0, 3);
    if (digits == 0 || !parse_u64(thousandths, fraction_ms)) return std::nullopt;
    suffix.remove_prefix(digits);
  }
  std::int64_t offset_s = 0;
  if (suffix != "Z") {
    std::uint64_t hours = 0;
    std::uint64_t minutes = 0;
    if (suffix.size() != 6 || (suffix[0] != '+' && suffix[0] != '-') || suffix[3] != ':' ||
        !parse_u64(suffix.substr(1, 2), hours) || !parse_u64(suffix.substr(4, 2), minutes) || hours > 23 ||
        minutes > 59) {
      return std::nullopt;
    }
    offset_s = static_cast<std::int64_t>(hours * 3600 + minutes * 60) * (suffix[0] == '-' ? -1 : 1);
  }
  date.tm_year -= 1900;
  date.tm_mon -= 1;
  const std::int64_t seconds = static_cast<std::int64_t>(::timegm(&date)) - offset_s;
  if (seconds < 0) return std::nullopt;
  return static_cast<std::uint64_t>(seconds) * 1000 + fraction_ms;
}

bool is_path_normal(const std::string& path) {
  return path.starts_with('/') && std::filesystem::path(path).lexically_normal().string() == path;
}

// Returns whether the text is host:port or [v6]:port, without characters that have another meaning in a URL.
bool is_host_and_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::uint64_t port = 0;
  if (colon == std::string_view::npos || colon == 0 || !parse_u64(text.substr(colon + 1), port)) return false;
  if (port == 0 || port > 65535) return false;
  std::string_view host = text.substr(0, colon);
  const bool is_ipv6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_ipv6) host = host.substr(1, host.size() - 2);
  static constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return host.find_first_not_of(is_ipv6 ? "0123456789abcdefABCDEF:." : kName) == std::string_view::npos;
}

// Returns the problem of a URL, or "". A URL is rejected if the HTTP client could interpret it differently from the
// comparison of its prefix with the allow list.
std::string find_url_problem(std::string_view url) {
  if (url.size() > 2048) return "is longer than 2048 bytes";
  const bool is_printable =
      std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f && c != '\\' && c != '"'; });
  if (!is_printable) return "encode characters outside of ASCII as %XX";
  const std::string_view hierarchical_part = url.substr(url.find("://") + 3);
  const std::string_view authority = hierarchical_part.substr(0, hierarchical_part.find_first_of("/?#"));
  if (authority.empty()) return "names no host";
  if (authority.find('@') != std::string_view::npos) return "omit the user name";
  std::string path(
      hierarchical_part.substr(authority.size(), hierarchical_part.find_first_of("?#") - authority.size()));
  for (std::size_t position = 0; (position = path.find("%2", position)) != std::string::npos; ++position) {
    if (position + 2 < path.size() && (path[position + 2] == 'e' || path[position + 2] == 'E'))
      path.replace(position, 3, ".");
  }
  if ((path + '/').find("/../") != std::string::npos || (path + '/').find("/./") != std::string::npos) {
    return "write the path without '.' and '..'";
  }
  return {};
}

bool entry_permits(std::string_view entry, std::string_view text) {
  if (entry.empty() || !text.starts_with(entry)) return false;
  if (text.size() == entry.size() || entry.back() == '/' || entry.back() == ':') return true;
  const char next_character = text[entry.size()];
  return next_character == '/' || (text.starts_with("http") && (next_character == '?' || next_character == '#'));
}

Result<Condition> parse_target(Condition condition, std::string_view value) {
  const std::string& text = condition.text;
  condition.target = value;
  switch (condition.kind) {
    case Kind::wait: {
      auto duration = parse_duration_ms(value);
      if (!duration) return make_invalid_error(text, duration.error().message);
      condition.time_ms = *duration;
      break;
    }
    case Kind::at: {
      const auto time_ms = parse_rfc3339(condition.target);
      if (!time_ms) return make_invalid_error(text, "use a time such as at:2026-11-21T10:00:00Z");
      condition.time_ms = *time_ms;
      break;
    }
    case Kind::redis:
      if (value.empty()) return make_invalid_error(text, "names no key");
      if (value.starts_with(kInternalKeyPrefix))
        return make_invalid_error(text, "keys that begin with mj: are not for jobs: name another");
      break;
    case Kind::file:
      if (!value.starts_with('/') || value.find('\0') != std::string_view::npos) {
        return make_invalid_error(text, "write the whole path, from /");
      }
      condition.target = std::filesystem::path(condition.target).lexically_normal().string();
      break;
    case Kind::tcp:
      if (!is_host_and_port(value)) return make_invalid_error(text, "write host and port, as in tcp:db.internal:5432");
      break;
    case Kind::http:
      condition.target = text;
      if (const std::string problem = find_url_problem(text); !problem.empty())
        return make_invalid_error(text, problem);
      break;
    case Kind::approval:
      if (value.empty()) return make_invalid_error(text, "names nothing");
      if (!is_approval_name(value))
        return make_invalid_error(text, "write a name of 1 to 64 letters, digits, '.', '_' and '-'");
      break;
    case Kind::flow: {
      std::uint64_t id = 0;
      if (value.empty()) return make_invalid_error(text, "names nothing");
      if (!parse_u64(value, id) || id == 0 || id > UINT32_MAX)
        return make_invalid_error(text, "write the id of a flow, as in flow:12");
      condition.target = std::to_string(id);
      break;
    }
  }
  return condition;
}

}  // namespace

Result<Condition> parse_condition(std::string_view text, const std::vector<std::string>& allowed) {
  const Scheme* scheme = find_scheme(text);
  if (scheme == nullptr) {
    return make_invalid_error(
        text, "has an unknown kind: use wait:, at:, redis:, file:, tcp:, http://, https://, approval: or flow:");
  }
  Condition condition;
  condition.kind = scheme->kind;
  condition.text = text;
  MJ_TRY(parsed, parse_target(std::move(condition), text.substr(scheme->prefix.size())));
  const std::string matched = parsed.kind == Kind::file ? "file:" + parsed.target : parsed.text;
  if (scheme->requires_permission && std::none_of(allowed.begin(), allowed.end(), [&](const std::string& entry) {
        return entry_permits(entry, matched);
      })) {
    return fail(Code::denied,
                quote_prerequisite(text) +
                    ": is not allowed on this host: the operator's setting prerequisites.allow has no matching prefix");
  }
  return std::move(parsed);
}

Result<void> check_allow_list(const std::vector<std::string>& allowed) {
  for (const std::string& entry : allowed) {
    if (std::count(allowed.begin(), allowed.end(), entry) > 1)
      return fail(Code::invalid, "prerequisites.allow: names " + excerpt(entry, 200) + " twice");
    const Scheme* scheme = find_scheme(entry);
    const bool is_whole_scheme = entry == "http:" || entry == "https:";
    if (!is_whole_scheme && (scheme == nullptr || !scheme->requires_permission)) {
      return fail(Code::invalid, "prerequisites.allow: " + excerpt(entry, 200) +
                                     " allows nothing: use a prefix that begins with file:, tcp:, http:// or https:// "
                                     "(wait, at, redis, approval and flow are always allowed)");
    }
    if (entry.starts_with("file:") && entry != "file:" && !is_path_normal(entry.substr(5))) {
      return fail(Code::invalid, "prerequisites.allow: " + excerpt(entry, 200) +
                                     " allows nothing: write the whole path, from /, without '.', '..' and '//'");
    }
  }
  return {};
}

bool is_approval_name(std::string_view name) {
  static constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 64 && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace mycojobs
