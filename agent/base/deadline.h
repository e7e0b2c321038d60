// Deadlines of blocking calls, and a wait for a descriptor that ends at a deadline.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace mycojobs {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_after(std::uint64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

// Waits for events of a descriptor. Returns 0 or an errno; ETIMEDOUT: the deadline has passed. Retries after signals.
inline int wait_for_events(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto remaining =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{fd, events, 0};
    const int ready =
        ::poll(&poll_fd, 1, static_cast<int>(std::clamp<std::int64_t>(remaining.count() + 1, 0, 1 << 30)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (std::chrono::steady_clock::now() >= deadline) return ETIMEDOUT;
  }
}

}  // namespace mycojobs
