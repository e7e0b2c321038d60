#include "text/line_diff.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPairs = 4'000'000;

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

using Lines = std::vector<std::string_view>;

// Appends the differences. longest[i, j] is the length of the longest common subsequence of a from i on and b from j
// on.
void append_differences(const Lines& a, const Lines& b, std::vector<DiffLine>& out) {
  std::vector<std::uint32_t> longest;
  const std::size_t width = b.size() + 1;
  if (a.size() * b.size() <= kMaxPairs) {
    longest.assign((a.size() + 1) * width, 0);
    for (std::size_t i = a.size(); i-- > 0;)
      for (std::size_t j = b.size(); j-- > 0;)
        longest[i * width + j] = a[i] == b[j] ? longest[(i + 1) * width + j + 1] + 1
                                              : std::max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  }
  std::size_t i = 0, j = 0;
  while (!longest.empty() && i < a.size() && j < b.size()) {
    if (a[i] == b[j]) {
      out.push_back({' ', a[i++]}), ++j;
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) {
      out.push_back({'-', a[i++]});
    } else {
      out.push_back({'+', b[j++]});
    }
  }
  while (i < a.size()) out.push_back({'-', a[i++]});
  while (j < b.size()) out.push_back({'+', b[j++]});
}

}  // namespace

std::vector<DiffLine> diff_lines(std::string_view before, std::string_view after) {
  Lines a = split_lines(before), b = split_lines(after);
  std::size_t common_begin = 0, common_end = 0;
  while (common_begin < std::min(a.size(), b.size()) && a[common_begin] == b[common_begin]) ++common_begin;
  while (common_end < std::min(a.size(), b.size()) - common_begin &&
         a[a.size() - 1 - common_end] == b[b.size() - 1 - common_end])
    ++common_end;
  std::vector<DiffLine> out;
  for (std::size_t i = 0; i < common_begin; ++i) out.push_back({' ', a[i]});
  const auto differing_part = [&](const Lines& all) {
    return Lines(all.begin() + static_cast<std::ptrdiff_t>(common_begin),
                 all.end() - static_cast<std::ptrdiff_t>(common_end));
  };
  append_differences(differing_part(a), differing_part(b), out);
  for (std::size_t i = a.size() - common_end; i < a.size(); ++i) out.push_back({' ', a[i]});
  return out;
}

std::string format_diff(const std::vector<DiffLine>& lines, std::size_t context_lines) {
  std::vector<bool> is_shown(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].sign == ' ') continue;
    for (std::size_t j = i - std::min(i, context_lines); j <= std::min(i + context_lines, lines.size() - 1); ++j)
      is_shown[j] = true;
  }
  std::string out;
  bool is_omitted = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (is_shown[i] && is_omitted) out += "...\n";
    is_omitted = !is_shown[i];
    if (is_shown[i]) out += std::string(1, lines[i].sign) + ' ' + std::string(lines[i].text) + '\n';
  }
  if (!out.empty() && is_omitted) out += "...\n";
  return out;
}

}  // namespace mycojobs
