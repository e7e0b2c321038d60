// The launcher's event loop: waits for descriptors and timers and calls their handlers. Single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/fd.h"

namespace mycojobs::sandbox {

// Milliseconds of CLOCK_BOOTTIME, which is independent of clock changes and includes suspend.
std::uint64_t boot_ms();
std::uint64_t boot_us();

class EventLoop {
 public:
  using Watch = std::uint64_t;  // never reused, so that a late event cannot reach a new owner; 0 is not a watch
  using Timer = std::pair<std::uint64_t, std::uint64_t>;  // boot time in ms, and a number that makes it unique

  using OnEvents = std::function<void(std::uint32_t epoll_events)>;

  EventLoop();
  // Returns 0 for files and other descriptors that epoll(7) does not support.
  Watch watch(int fd, OnEvents readable_or_closed);
  void unwatch(Watch&, int fd);
  // REQUIRES: `fd` is not watched already (use a dup).
  Watch watch_writable(int fd, OnEvents);
  Timer add_timer(std::uint64_t boot_ms, std::function<void()>);
  void cancel(Timer&);
  void run();  // returns after stop()
  void stop() { is_stopped_ = true; }

 private:
  Watch add(int fd, std::uint32_t events, OnEvents);
  void run_due_timers();
  void set_timer_fd();

  Fd epoll_, timer_fd_;
  bool is_stopped_ = false;
  std::uint64_t next_id_ = 1, timer_fd_due_boot_ms_ = 0;
  std::unordered_map<Watch, OnEvents> watches_;
  std::map<Timer, std::function<void()>> timers_;
};

}  // namespace mycojobs::sandbox
