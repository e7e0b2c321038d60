// Texts in Runner::detail that several components use.
#pragma once

#include <string_view>

namespace mycojobs {

// Prefix of the detail while an agent cannot start jobs; the reason follows.
inline constexpr std::string_view kRunnerPaused = "paused: ";

}  // namespace mycojobs
