#include "sandbox/egress/header_fields.h"

#include <algorithm>
#include <iterator>

namespace mycojobs::egress {
namespace {

constexpr std::string_view kFraming[] = {"host", "content-length", "transfer-encoding"};
constexpr std::string_view kOneHop[] = {"connection",
                                        "keep-alive",
                                        "proxy-connection",
                                        "proxy-authenticate",
                                        "proxy-authorization",
                                        "proxy-authentication-info",
                                        "te",
                                        "upgrade",
                                        "http2-settings"};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

template <std::size_t N>
bool among(std::string_view name, const std::string_view (&names)[N]) {
  return std::any_of(std::begin(names), std::end(names), [&](std::string_view each) { return same_name(name, each); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || kMarks.find(c) != kMarks.npos;
  });
}

std::optional<Field> parse_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) return {};
  const std::string_view value = trimmed(line.substr(colon + 1));
  const auto control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7f; };
  if (std::any_of(value.begin(), value.end(), control)) return {};
  return Field{line.substr(0, colon), value};
}

// Once for a message: to read the lists anew for each field would cost the square of what a job sends.
HopFields::HopFields(const std::vector<Field>& all) {
  for (const auto& [name, value] : all) {
    if (!same_name(name, "connection")) continue;
    for (std::string_view left = value;;) {
      const std::size_t comma = left.find(',');
      listed_.insert(lower(trimmed(left.substr(0, comma))));
      if (comma == left.npos) break;
      left.remove_prefix(comma + 1);
    }
  }
}

bool HopFields::contains(std::string_view name) const {
  return !among(name, kFraming) && (among(name, kOneHop) || listed_.contains(lower(name)));
}

}  // namespace mycojobs::egress
