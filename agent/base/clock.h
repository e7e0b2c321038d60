// Port: time of this host. Leases are judged by the store's time (Redis TIME) instead.
#pragma once

#include <cstdint>

namespace mycojobs {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::uint64_t unix_ms() const = 0;  // for display; may jump
  virtual std::uint64_t boot_ms() const = 0;  // CLOCK_BOOTTIME: monotonic, includes suspend; for deadlines and fences
};

// The system clock.
class SystemClock final : public Clock {
 public:
  std::uint64_t unix_ms() const override;
  std::uint64_t boot_ms() const override;
};

}  // namespace mycojobs
