#include "text/suggestion.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxLength = 64;
constexpr std::size_t kMaxSpellingErrors = 3;

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Returns the edit distance between a and b (optimal string alignment), or a value above `max` if it exceeds `max`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t max) {
  using Row = std::array<std::size_t, kMaxLength + 1>;
  Row row_before_previous{};
  Row previous_row{};
  Row row{};
  for (std::size_t j = 0; j <= b.size(); ++j) previous_row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    std::size_t min = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool is_equal = to_lower(a[i - 1]) == to_lower(b[j - 1]);
      row[j] = std::min({previous_row[j] + 1, row[j - 1] + 1, previous_row[j - 1] + (is_equal ? 0 : 1)});
      const bool is_swapped =
          i > 1 && j > 1 && to_lower(a[i - 1]) == to_lower(b[j - 2]) && to_lower(a[i - 2]) == to_lower(b[j - 1]);
      if (is_swapped) row[j] = std::min(row[j], row_before_previous[j - 2] + 1);
      min = std::min(min, row[j]);
    }
    if (min > max) return min;
    row_before_previous = previous_row;
    previous_row = row;
  }
  return previous_row[b.size()];
}

}  // namespace

std::string_view find_nearest(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.empty() || name.size() > kMaxLength) return {};
  std::size_t max = std::min(name.size() / 3, kMaxSpellingErrors);
  std::string_view best;
  for (std::string_view candidate : candidates) {
    const std::size_t length_difference =
        candidate.size() > name.size() ? candidate.size() - name.size() : name.size() - candidate.size();
    if (candidate.empty() || candidate.size() > kMaxLength || length_difference > max) continue;
    const std::size_t count = edit_distance(name, candidate, max);
    if (count > max) continue;
    best = candidate;
    if (count == 0) break;
    max = count - 1;
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view best = find_nearest(name, candidates);
  return best.empty() ? "" : "; did you mean \"" + std::string(best) + "\"?";
}

}  // namespace mycojobs
