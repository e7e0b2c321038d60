// Words of Runner::detail that one room writes and another reads.
#pragma once

#include <string_view>

namespace mycojobs {

// What the detail begins with while an agent can start no jobs; the reason follows.
inline constexpr std::string_view kRunnerPaused = "paused: ";

}  // namespace mycojobs
