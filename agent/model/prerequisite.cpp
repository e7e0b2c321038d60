#include "model/prerequisite.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>

#include "base/parse.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using Kind = Condition::Kind;

struct Scheme {
  std::string_view beginning;
  Kind kind;
  bool asks_operator;  // prerequisites.allow must permit it
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

const Scheme* scheme_of(std::string_view text) {
  const auto* found = std::find_if(kSchemes.begin(), kSchemes.end(),
                                   [&](const Scheme& each) { return text.starts_with(each.beginning); });
  return found == kSchemes.end() ? nullptr : found;
}

std::string quoted(std::string_view text) { return "prerequisite " + excerpt(text, 200); }
tl::unexpected<Error> refuse(std::string_view text, const std::string& why) {
  return fail(Code::invalid, quoted(text) + ": " + why);
}

// Checks the date, because timegm would accept the 31st of June.
bool is_date(int year, int month, int day) {
  static constexpr std::array<int, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1970 || month < 1 || month > 12 || day < 1) return false;
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return day <= kDays[static_cast<std::size_t>(month) - 1] + (month == 2 && leap ? 1 : 0);
}

// Returns the number at this position. REQUIRES: the text has digits there.
int number_at(std::string_view text, std::size_t from, std::size_t size) {
  int number = 0;
  for (char c : text.substr(from, size)) number = number * 10 + (c - '0');
  return number;
}

// Parses RFC 3339: 2026-11-21T10:00:00Z, with fractions of a second, or an offset instead of the Z.
std::optional<std::uint64_t> parse_moment(std::string text) {
  for (char& c : text) c = c == 't' ? 'T' : c == 'z' ? 'Z' : c;
  static constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (text.size() <= kShape.size()) return std::nullopt;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != kShape[i]) return std::nullopt;
  }
  std::tm date{};
  date.tm_year = number_at(text, 0, 4);
  date.tm_mon = number_at(text, 5, 2);
  date.tm_mday = number_at(text, 8, 2);
  date.tm_hour = number_at(text, 11, 2);
  date.tm_min = number_at(text, 14, 2);
  date.tm_sec = number_at(text, 17, 2);
  if (!is_date(date.tm_year, date.tm_mon, date.tm_mday) || date.tm_hour > 23 || date.tm_min > 59 || date.tm_sec > 60) {
    return std::nullopt;
  }
  std::string_view rest = std::string_view(text).substr(kShape.size());
  std::uint64_t fraction_ms = 0;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const std::string thousandths = (std::string(rest.substr(0, digits)) + "000").substr(0, 3);
    if (digits == 0 || !parse_u64(thousandths, fraction_ms)) return std::nullopt;
    rest.remove_prefix(digits);
  }
  std::int64_t offset_s = 0;
  if (rest != "Z") {
    std::uint64_t hours = 0;
    std::uint64_t minutes = 0;
    if (rest.size() != 6 || (rest[0] != '+' && rest[0] != '-') || rest[3] != ':' ||
        !parse_u64(rest.substr(1, 2), hours) || !parse_u64(rest.substr(4, 2), minutes) || hours > 23 || minutes > 59) {
      return std::nullopt;
    }
    offset_s = static_cast<std::int64_t>(hours * 3600 + minutes * 60) * (rest[0] == '-' ? -1 : 1);
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
  const bool v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (v6) host = host.substr(1, host.size() - 2);
  static constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return host.find_first_not_of(v6 ? "0123456789abcdefABCDEF:." : kName) == std::string_view::npos;
}

// Returns the problem of a URL, or "". URLs that the check of the beginning and the HTTP client could interpret
// differently are rejected.
std::string problem_of_url(std::string_view url) {
  if (url.size() > 2048) return "is longer than 2048 bytes";
  const bool plain =
      std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f && c != '\\' && c != '"'; });
  if (!plain) return "encode characters outside of ASCII as %XX";
  const std::string_view after = url.substr(url.find("://") + 3);
  const std::string_view authority = after.substr(0, after.find_first_of("/?#"));
  if (authority.empty()) return "names no host";
  if (authority.find('@') != std::string_view::npos) return "omit the user name";
  std::string path(after.substr(authority.size(), after.find_first_of("?#") - authority.size()));
  for (std::size_t at = 0; (at = path.find("%2", at)) != std::string::npos; ++at) {
    if (at + 2 < path.size() && (path[at + 2] == 'e' || path[at + 2] == 'E')) path.replace(at, 3, ".");
  }
  if ((path + '/').find("/../") != std::string::npos || (path + '/').find("/./") != std::string::npos) {
    return "write the path without '.' and '..'";
  }
  return {};
}

bool allows(std::string_view entry, std::string_view text) {
  if (entry.empty() || !text.starts_with(entry)) return false;
  if (text.size() == entry.size() || entry.back() == '/' || entry.back() == ':') return true;
  const char next = text[entry.size()];
  return next == '/' || (text.starts_with("http") && (next == '?' || next == '#'));
}

Result<Condition> parse_target(Condition condition, std::string_view rest) {
  const std::string& text = condition.text;
  condition.target = rest;
  switch (condition.kind) {
    case Kind::wait: {
      auto duration = parse_duration_ms(rest);
      if (!duration) return refuse(text, duration.error().message);
      condition.time_ms = *duration;
      break;
    }
    case Kind::at: {
      const auto moment = parse_moment(condition.target);
      if (!moment) return refuse(text, "use a time such as at:2026-11-21T10:00:00Z");
      condition.time_ms = *moment;
      break;
    }
    case Kind::redis:
      if (rest.empty()) return refuse(text, "names no key");
      if (rest.starts_with("mj:")) return refuse(text, "keys that begin with mj: are not for jobs: name another");
      break;
    case Kind::file:
      if (!rest.starts_with('/') || rest.find('\0') != std::string_view::npos) {
        return refuse(text, "write the whole path, from /");
      }
      condition.target = std::filesystem::path(condition.target).lexically_normal().string();
      break;
    case Kind::tcp:
      if (!is_host_and_port(rest)) return refuse(text, "write host and port, as in tcp:db.internal:5432");
      break;
    case Kind::http:
      condition.target = text;
      if (const std::string problem = problem_of_url(text); !problem.empty()) return refuse(text, problem);
      break;
    case Kind::approval:
      if (rest.empty()) return refuse(text, "names nothing");
      if (!is_approval_name(rest)) return refuse(text, "write a name of 1 to 64 letters, digits, '.', '_' and '-'");
      break;
    case Kind::flow: {
      std::uint64_t id = 0;
      if (rest.empty()) return refuse(text, "names nothing");
      if (!parse_u64(rest, id) || id == 0 || id > UINT32_MAX)
        return refuse(text, "write the id of a flow, as in flow:12");
      condition.target = std::to_string(id);
      break;
    }
  }
  return condition;
}

}  // namespace

Result<Condition> parse_condition(std::string_view text, const std::vector<std::string>& allowed) {
  const Scheme* scheme = scheme_of(text);
  if (scheme == nullptr) {
    return refuse(text,
                  "has an unknown kind: use wait:, at:, redis:, file:, tcp:, http://, https://, approval: or flow:");
  }
  Condition condition;
  condition.kind = scheme->kind;
  condition.text = text;
  MJ_TRY(parsed, parse_target(std::move(condition), text.substr(scheme->beginning.size())));
  const std::string matched = parsed.kind == Kind::file ? "file:" + parsed.target : parsed.text;
  if (scheme->asks_operator &&
      std::none_of(allowed.begin(), allowed.end(), [&](const std::string& entry) { return allows(entry, matched); })) {
    return fail(Code::denied,
                quoted(text) +
                    ": is not allowed on this host: the operator's setting prerequisites.allow has no matching prefix");
  }
  return std::move(parsed);
}

Result<void> check_allow_list(const std::vector<std::string>& allowed) {
  for (const std::string& entry : allowed) {
    if (std::count(allowed.begin(), allowed.end(), entry) > 1)
      return fail(Code::invalid, "prerequisites.allow: names " + excerpt(entry, 200) + " twice");
    const Scheme* scheme = scheme_of(entry);
    const bool whole_scheme = entry == "http:" || entry == "https:";
    if (!whole_scheme && (scheme == nullptr || !scheme->asks_operator)) {
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
