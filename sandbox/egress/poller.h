// The epoll set of one run. Each run has its own set, nested in the proxy's set, so that an iteration of the loop gives
// every run the same share of work, regardless of its number of connections.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "base/fd.h"

namespace mycojobs::egress {

class Poller {
 public:
  static constexpr std::uint32_t kListenerId = 0;  // the listener's id; connections start at 1

  Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}
  explicit operator bool() const { return static_cast<bool>(epoll_); }
  int fd() const { return epoll_.get(); }

  // Changes the watched events of a descriptor from `current` to `events` and updates `current`. 0 removes the
  // descriptor from the set, since EPOLLHUP cannot be masked and would wake the loop continuously. Returns 0 or an
  // errno.
  int set_events(int descriptor, std::uint32_t id, std::uint32_t& current, std::uint32_t events) const {
    if (events == current) return 0;
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<std::uint64_t>(id) << 32 | static_cast<std::uint32_t>(descriptor);
    const int operation = events == 0 ? EPOLL_CTL_DEL : current == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0) return errno;
    current = events;
    return 0;
  }
  static std::uint32_t connection_id(const epoll_event& event) {
    return static_cast<std::uint32_t>(event.data.u64 >> 32);
  }
  static int watched_fd(const epoll_event& event) { return static_cast<int>(event.data.u64 & 0xffffffff); }

 private:
  Fd epoll_;
};

}  // namespace mycojobs::egress
