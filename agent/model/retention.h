// How long ended jobs, flows and messages are kept.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mycojobs {

// Times in ms after the end; 0 means unlimited.
struct Retention {
  static constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;

  std::uint64_t succeeded_ms = kDayMs;   // successful jobs that belong to no flow, and messages
  std::uint64_t failed_ms = 7 * kDayMs;  // other jobs that belong to no flow
  std::uint64_t flow_ms = 7 * kDayMs;    // flows, and their jobs

  static constexpr Retention same_for_all(std::uint64_t ms) { return {ms, ms, ms}; }
  // Returns the shortest limited time; 0 if all are unlimited.
  constexpr std::uint64_t shortest_ms() const {
    std::uint64_t shortest = 0;
    for (const std::uint64_t ms : {succeeded_ms, failed_ms, flow_ms})
      if (ms > 0) shortest = shortest == 0 ? ms : std::min(shortest, ms);
    return shortest;
  }
};

}  // namespace mycojobs
