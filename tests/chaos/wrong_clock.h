// Processes with a wrong wall clock that can jump.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

// The wall clock of a process, shifted by skew.cpp.
class Skew {
 public:
  Skew(const TempDir& folder, const std::string& name, std::int64_t seconds) : path_(folder / name) { jump(seconds); }
  void jump(std::int64_t seconds) const {
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
