#include "base/result.h"

#include <array>
#include <cstddef>

namespace mycojobs {

std::string_view to_string(Code code) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"invalid", "not_found", "conflict", "stale_claim", "denied", "unavailable",
                                       "unsupported", "too_large", "io", "internal"});
  static_assert(kNames.size() == static_cast<std::size_t>(Code::internal) + 1);
  return kNames.at(static_cast<std::size_t>(code));
}

}  // namespace mycojobs
