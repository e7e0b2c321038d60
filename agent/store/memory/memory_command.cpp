#include "store/memory/memory_command.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace mycojobs::memory {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Whether `c` is in the class that begins behind the bracket at pattern[at]; moves `at` to its end.
bool in_class(std::string_view pattern, std::size_t& at, char c) {
  ++at;
  const bool negated = at < pattern.size() && pattern[at] == '^';
  if (negated) ++at;
  bool found = false;
  for (;; ++at) {
    if (at >= pattern.size()) {
      --at;
      break;
    }
    if (pattern[at] == '\\' && at + 1 < pattern.size()) {
      found = found || pattern[++at] == c;
    } else if (pattern[at] == ']') {
      break;
    } else if (at + 2 < pattern.size() && pattern[at + 1] == '-') {
      const auto [low, high] = std::minmax(pattern[at], pattern[at + 2]);
      found = found || (c >= low && c <= high);
      at += 2;
    } else {
      found = found || pattern[at] == c;
    }
  }
  return found != negated;
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool is_word(std::string_view text, std::string_view upper_case) {
  return text.size() == upper_case.size() &&
         std::equal(text.begin(), text.end(), upper_case.begin(), [](char a, char b) { return lower(a) == lower(b); });
}

std::optional<std::int64_t> to_integer(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || (digits[0] == '0' && text.size() > 1)) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> to_real(std::string_view text) {
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0])) != 0) return std::nullopt;
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(copy.c_str(), &end);
  const bool overflow = errno == ERANGE && (std::abs(number) == HUGE_VAL || number == 0);
  if (end != copy.c_str() + copy.size() || overflow || std::isnan(number)) return std::nullopt;
  return number;
}

Result<std::int64_t> integer(std::string_view text, std::string_view otherwise) {
  const auto number = to_integer(text);
  if (!number) return refuse(otherwise);
  return *number;
}

Result<std::int64_t> count_of(std::string_view text) {
  MJ_TRY(number, integer(text, kNotPositive));
  if (number < 0) return refuse(kNotPositive);
  return number;
}

std::string real_text(double number) {
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 40> text{};
  const int size = std::snprintf(text.data(), text.size(), "%.17g", number);
  return {text.data(), static_cast<std::size_t>(size)};
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t at = 0;
  for (; at < pattern.size() && (!text.empty() || pattern[at] == '*'); ++at) {
    if (pattern[at] == '*') {
      const std::string_view rest = pattern.substr(at + 1);
      for (std::size_t skipped = 0; skipped <= text.size(); ++skipped) {
        if (glob_matches(rest, text.substr(skipped))) return true;
      }
      return false;
    }
    if (pattern[at] == '[') {
      if (!in_class(pattern, at, text[0])) return false;
    } else if (pattern[at] != '?') {
      if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
      if (pattern[at] != text[0]) return false;
    }
    text.remove_prefix(1);
  }
  return text.empty() && at >= pattern.size();
}

tl::unexpected<Error> wrong_number_of_words(std::string_view command) {
  return refuse("ERR wrong number of arguments for '" + lower_case(command) + "' command");
}

Section section(std::size_t size, std::int64_t start, std::int64_t end) {
  const auto count = static_cast<std::int64_t>(size);
  if (start < 0) start = std::max<std::int64_t>(start + count, 0);
  if (end < 0) end += count;
  end = std::min(end, count - 1);
  if (start > end) return {};
  return {static_cast<std::size_t>(start), static_cast<std::size_t>(end) + 1};
}

}  // namespace mycojobs::memory
