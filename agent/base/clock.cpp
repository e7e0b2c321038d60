#include "base/clock.h"

#include <ctime>

namespace mycojobs {
namespace {
std::uint64_t read_ms(clockid_t id) {
  timespec now{};
  ::clock_gettime(id, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}
}  // namespace

std::uint64_t SystemClock::unix_ms() const { return read_ms(CLOCK_REALTIME); }
std::uint64_t SystemClock::boot_ms() const { return read_ms(CLOCK_BOOTTIME); }

}  // namespace mycojobs
