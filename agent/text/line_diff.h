// Line-by-line difference of two texts. Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

struct DiffLine {
  char sign = ' ';        // ' ' in both texts, '-' only in the first, '+' only in the second
  std::string_view text;  // without the line end; a view of the given text
  bool operator==(const DiffLine&) const = default;
};
// Returns the smallest difference. For very long texts (more than 4 million pairs of lines), all lines between the
// common beginning and the common end count as different.
std::vector<DiffLine> diff_lines(std::string_view before, std::string_view after);

// Formats the differing lines, each with its sign and a blank in front, and up to `context_lines` equal lines around
// them. "..." replaces omitted lines. Returns an empty text if the texts have the same lines.
std::string format_diff(const std::vector<DiffLine>&, std::size_t context_lines = 2);

}  // namespace mycojobs
