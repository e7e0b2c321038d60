// The line that readers of a log see in the place of dropped output.
#pragma once

#include <cstdint>
#include <string>

namespace mycojobs {

inline std::string format_output_gap(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes of output dropped here\n";
}

}  // namespace mycojobs
