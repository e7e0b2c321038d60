// Port: time. The store's time (Redis TIME) judges leases; these clocks measure on this host.
#pragma once

#include <cstdint>

namespace mycojobs {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::uint64_t unix_ms() const = 0;  // for people; may jump
  virtual std::uint64_t boot_ms() const = 0;  // CLOCK_BOOTTIME: monotonic, counts suspend; deadlines and fences
};

}  // namespace mycojobs
