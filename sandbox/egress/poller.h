// The epoll set of one run. Each run has its own, nested in the proxy's, so that a turn of the loop gives every run the
// same share of work however many connections it has.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "base/fd.h"

namespace mycojobs::egress {

class Poller {
 public:
  static constexpr std::uint32_t kNobody = 0;  // the listener's; connections begin at 1

  Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}
  explicit operator bool() const { return static_cast<bool>(epoll_); }
  int fd() const { return epoll_.get(); }

  // Waits for `wanted` on the descriptor; `now` says what it waits for already and is kept up to date. 0 takes it out
  // of the set: EPOLLHUP, which cannot be masked, would wake the loop again and again. 0 or errno.
  int wait_for(int descriptor, std::uint32_t id, std::uint32_t& now, std::uint32_t wanted) const {
    if (wanted == now) return 0;
    epoll_event event{};
    event.events = wanted;
    event.data.u64 = static_cast<std::uint64_t>(id) << 32 | static_cast<std::uint32_t>(descriptor);
    const int operation = wanted == 0 ? EPOLL_CTL_DEL : now == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0) return errno;
    now = wanted;
    return 0;
  }
  static std::uint32_t id_of(const epoll_event& event) { return static_cast<std::uint32_t>(event.data.u64 >> 32); }
  static int fd_of(const epoll_event& event) { return static_cast<int>(event.data.u64 & 0xffffffff); }

 private:
  Fd epoll_;
};

}  // namespace mycojobs::egress
