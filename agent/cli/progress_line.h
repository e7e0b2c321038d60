// Progress of what takes longer than a second, on one line of a terminal.
#pragma once

#include <cstdint>
#include <string_view>

#include "mycojobs/clock.h"

namespace mycojobs {

// Writes nothing where stderr is no terminal. The line is taken away when this goes.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock) : clock_(clock), since_boot_ms_(clock.boot_ms()) {}
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view phase, std::uint64_t done, std::uint64_t total);  // total 0: nobody knows

 private:
  const Clock& clock_;
  std::uint64_t since_boot_ms_;
  std::uint64_t shown_boot_ms_ = 0;  // 0: never
};

}  // namespace mycojobs
