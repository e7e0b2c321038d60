// The launcher's one thread: waits for descriptors and deadlines, calls what belongs to them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/fd.h"

namespace mycojobs::sandbox {

// Milliseconds of CLOCK_BOOTTIME: setting the clock changes nothing, a suspended machine's sleep counts.
std::uint64_t boot_ms();
std::uint64_t boot_us();

class Loop {
 public:
  using Watch = std::uint64_t;  // 0: none. Never used twice, so that a late event cannot meet a new owner
  using Timer = std::pair<std::uint64_t, std::uint64_t>;

  using OnEvents = std::function<void(std::uint32_t epoll_events)>;

  Loop();
  Watch watch(int fd, OnEvents readable_or_closed);  // 0: a file, say, which cannot be waited for
  void unwatch(Watch&, int fd);
  // The descriptor must be another number than one that is watched already (a dup).
  Watch watch_writable(int fd, OnEvents);
  Timer at(std::uint64_t boot_ms, std::function<void()>);
  void cancel(Timer&);
  void run();  // until stop()
  void stop() { stopped_ = true; }

 private:
  Watch add(int fd, std::uint32_t events, OnEvents);
  void fire_due();
  void set_alarm();

  Fd epoll_, alarm_;
  bool stopped_ = false;
  std::uint64_t next_ = 1, alarm_for_ = 0;
  std::unordered_map<Watch, OnEvents> watches_;
  std::map<Timer, std::function<void()>> timers_;
};

}  // namespace mycojobs::sandbox
