// The system clock.
#pragma once

#include "mycojobs/clock.h"

namespace mycojobs {

class SystemClock final : public Clock {
 public:
  std::uint64_t unix_ms() const override;
  std::uint64_t boot_ms() const override;
};

}  // namespace mycojobs
