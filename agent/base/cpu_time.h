// CPU time that the calling thread or its process has used. Thread-safe.
#pragma once

#include <cstdint>
#include <ctime>

namespace mycojobs {

// `clock` is CLOCK_THREAD_CPUTIME_ID or CLOCK_PROCESS_CPUTIME_ID.
inline std::uint64_t cpu_time_ns(clockid_t clock) {
  timespec used{};
  ::clock_gettime(clock, &used);
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(used.tv_nsec);
}

}  // namespace mycojobs
