// Times used by the tests of schedules.
#pragma once

#include <cstdint>

namespace mycojobs {

inline constexpr std::uint64_t kMinute = 60000, kDay = 24 * 60 * kMinute;
inline constexpr std::uint64_t kNoon = 1795348800000;  // 2026-11-22 12:00:00 UTC

}  // namespace mycojobs
