// A clock that the test advances.
#pragma once

#include "base/clock.h"

namespace mycojobs::test {

struct ManualClock final : Clock {
  std::uint64_t unix = 1700000000000, boot = 1000000;
  std::uint64_t unix_ms() const override { return unix; }
  std::uint64_t boot_ms() const override { return boot; }
  void advance(std::uint64_t ms) { unix += ms, boot += ms; }
};

}  // namespace mycojobs::test
