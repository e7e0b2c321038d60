#include "sandbox/launcher/event_loop.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace mycojobs::sandbox {

std::uint64_t boot_us() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}
std::uint64_t boot_ms() { return boot_us() / 1000; }

EventLoop::EventLoop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), timer_fd_(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!epoll_ || !timer_fd_) std::abort();  // nothing can run without them
  watch(timer_fd_.get(), [this](std::uint32_t) {
    std::uint64_t times = 0;
    (void)!::read(timer_fd_.get(), &times, sizeof times);
  });
}

EventLoop::Watch EventLoop::add(int fd, std::uint32_t events, OnEvents handler) {
  const Watch id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    // The descriptor is from an untrusted process and not supported: a file, or a cycle of epoll sets.
    if (errno == EPERM || errno == ELOOP || errno == EINVAL) return 0;
    std::abort();
  }
  watches_.emplace(id, std::move(handler));
  return id;
}

EventLoop::Watch EventLoop::watch(int fd, OnEvents handler) { return add(fd, EPOLLIN, std::move(handler)); }
EventLoop::Watch EventLoop::watch_writable(int fd, OnEvents handler) { return add(fd, EPOLLOUT, std::move(handler)); }

void EventLoop::unwatch(Watch& watch, int fd) {
  if (watch == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watches_.erase(watch);
  watch = 0;
}

EventLoop::Timer EventLoop::add_timer(std::uint64_t when, std::function<void()> handler) {
  const Timer timer{when, next_id_++};
  timers_.emplace(timer, std::move(handler));
  return timer;
}

void EventLoop::cancel(Timer& timer) {
  timers_.erase(timer);
  timer = {};
}

void EventLoop::run_due_timers() {
  const std::uint64_t now = boot_ms();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto handler = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    handler();
  }
}

// Most timers are cancelled before they expire, so the alarm is changed only if it would expire too late.
void EventLoop::set_timer_fd() {
  if (timers_.empty()) return;
  const std::uint64_t first_due_boot_ms = timers_.begin()->first.first;
  if (timer_fd_due_boot_ms_ > boot_ms() && timer_fd_due_boot_ms_ <= first_due_boot_ms) return;
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(first_due_boot_ms / 1000);
  spec.it_value.tv_nsec = static_cast<long>(first_due_boot_ms % 1000) * 1000000 + 1;
  ::timerfd_settime(timer_fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  timer_fd_due_boot_ms_ = first_due_boot_ms;
}

void EventLoop::run() {
  epoll_event events[64];
  while (!is_stopped_) {
    set_timer_fd();
    const int count = ::epoll_wait(epoll_.get(), events, 64, -1);
    if (count < 0 && errno != EINTR) std::abort();
    for (int i = 0; i < count && !is_stopped_; ++i) {
      const auto found = watches_.find(events[i].data.u64);
      if (found == watches_.end()) continue;
      const auto handler = found->second;  // a copy, since the handler may call unwatch()
      handler(events[i].events);
    }
    run_due_timers();
  }
}

}  // namespace mycojobs::sandbox
