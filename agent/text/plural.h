// Formats a count with its noun: "1 job", "2 jobs".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mycojobs {

// many: the plural, if it is not formed with an s.
inline std::string count_with_noun(std::uint64_t count, std::string_view one, std::string_view many = {}) {
  std::string text = std::to_string(count) + ' ';
  if (count == 1) return text.append(one);
  return many.empty() ? text.append(one) + 's' : text.append(many);
}

}  // namespace mycojobs
