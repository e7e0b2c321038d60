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

  Loop();
  Watch watch(int fd, std::function<void()> readable_or_closed);
  void unwatch(Watch&, int fd);
  // The descriptor must be another number than one that is watched already (a dup).
  Watch watch_writable(int fd, std::function<void()> fn);
  Timer at(std::uint64_t boot_ms, std::function<void()>);
  void cancel(Timer&);
  void run();  // until stop()
  void stop() { stopped_ = true; }

 private:
  Watch add(int fd, std::uint32_t events, std::function<void()>);
  void fire_due();
  void set_alarm();

  Fd epoll_, alarm_;
  bool stopped_ = false;
  std::uint64_t next_ = 1, alarm_for_ = 0;
  std::unordered_map<Watch, std::function<void()>> watches_;
  std::map<Timer, std::function<void()>> timers_;
};

}  // namespace mycojobs::sandbox
