// Formats a count with its noun: "1 job", "2 jobs".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mycojobs {

// `plural` is needed only if the plural is not formed with an s.
inline std::string count_with_noun(std::uint64_t count, std::string_view singular, std::string_view plural = {}) {
  std::string text = std::to_string(count) + ' ';
  if (count == 1) return text.append(singular);
  return plural.empty() ? text.append(singular) + 's' : text.append(plural);
}

}  // namespace mycojobs
