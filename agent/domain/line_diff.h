// Two texts, line by line: what stays, what goes, what comes. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

struct DiffLine {
  char sign = ' ';        // ' ' both have it, '-' only the first, '+' only the second
  std::string_view text;  // without its line end; of the text that was given
  bool operator==(const DiffLine&) const = default;
};
// The fewest lines that differ; of very long texts (more than 4 million pairs of lines) all between their common
// beginning and their common end.
std::vector<DiffLine> line_diff(std::string_view before, std::string_view after);

// The lines that differ, each behind its sign and a blank, with so many lines around them; "..." where some are left
// out. Empty: the texts have the same lines.
std::string show_diff(const std::vector<DiffLine>&, std::size_t around = 2);

}  // namespace mycojobs
