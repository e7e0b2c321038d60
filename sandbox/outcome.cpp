#include "sandbox/outcome.h"

#include <cstddef>

namespace mycojobs {

std::string_view to_string(RunStatus status) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"ok", "exit", "signal", "timeout_wall", "timeout_cpu", "oom", "output_limit", "file_limit", "pids_limit",
       "violation", "cancelled", "lost", "unkillable", "setup_error"});
  static_assert(kNames.size() == static_cast<std::size_t>(RunStatus::setup_error) + 1);
  return kNames.at(static_cast<std::size_t>(status));
}

}  // namespace mycojobs
