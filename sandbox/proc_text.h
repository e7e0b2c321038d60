// Numbers in the files of /proc.
#pragma once

#include <fmt/core.h>

#include <fstream>
#include <optional>
#include <string>

namespace mycojobs::sandbox {

// The one behind the word `key`.
inline std::optional<long> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    long number = 0;
    if (word == key && file >> number) return number;
  }
  return {};
}

// The process behind a pidfd, as our own namespace numbers it; -1: it has been reaped.
inline std::optional<long> pid_of(int pidfd) {
  return number_after(fmt::format("/proc/self/fdinfo/{}", pidfd), "Pid:");
}

}  // namespace mycojobs::sandbox
