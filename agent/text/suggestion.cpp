#include "text/suggestion.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxLength = 64;
constexpr std::size_t kMaxSpellingErrors = 3;

char low(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Returns the edit distance between a and b (optimal string alignment), or a value above `max` if it exceeds `max`.
std::size_t slips(std::string_view a, std::string_view b, std::size_t max) {
  using Row = std::array<std::size_t, kMaxLength + 1>;
  Row before{};
  Row above{};
  Row row{};
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    std::size_t min = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = low(a[i - 1]) == low(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && low(a[i - 1]) == low(b[j - 2]) && low(a[i - 2]) == low(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
      min = std::min(min, row[j]);
    }
    if (min > max) return min;
    before = above;
    above = row;
  }
  return above[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.empty() || name.size() > kMaxLength) return {};
  std::size_t max = std::min(name.size() / 3, kMaxSpellingErrors);
  std::string_view found;
  for (std::string_view each : candidates) {
    const std::size_t apart = each.size() > name.size() ? each.size() - name.size() : name.size() - each.size();
    if (each.empty() || each.size() > kMaxLength || apart > max) continue;
    const std::size_t count = slips(name, each, max);
    if (count > max) continue;
    found = each;
    if (count == 0) break;
    max = count - 1;
  }
  return found;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view found = nearest(name, candidates);
  return found.empty() ? "" : "; did you mean \"" + std::string(found) + "\"?";
}

}  // namespace mycojobs
