// Processes with a shifted wall clock. A change of the shift is a jump of the clock.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

// The wall clock of a process, shifted by skew.cpp.
class SkewedClock {
 public:
  SkewedClock(const TempDir& folder, const std::string& name, std::int64_t seconds) : path_(folder / name) {
    set_shift_s(seconds);
  }
  void set_shift_s(std::int64_t seconds) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    if (!file) file.open(path_, std::ios::binary | std::ios::out);
    file.write(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> environment() const { return {"LD_PRELOAD=" MJ_SKEW, "MJ_SKEW_FILE=" + path_}; }

 private:
  std::string path_;
};

}  // namespace mycojobs::test
