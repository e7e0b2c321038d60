// Detects threads of worker/lanes.h that do not answer. A plugin or a disk can block without a limit, and the jobs that
// wait for it must not occupy slots. Uses no thread and no clock: all times are arguments, on CLOCK_BOOTTIME. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace mycojobs {

class Beginnings {
 public:
  // Longer than the time limit for loading a plugin and preparing a job, and longer than a disk needs for artifacts.
  static constexpr std::uint64_t kPatienceMs = 10000;

  bool empty() const { return lanes_.empty(); }
  void asked_for(const std::string& lane, std::uint64_t now_boot_ms);
  void answered(const std::string& lane, std::uint64_t now_boot_ms);  // REQUIRES: one call for each asked_for().
  // Returns whether requests are waiting and none was answered for kPatienceMs.
  bool hangs(std::string_view lane, std::uint64_t now_boot_ms) const;

 private:
  struct Lane {
    std::size_t waiting = 0;
    std::uint64_t since_boot_ms = 0;  // time of the last answer, or of the first request
  };
  std::map<std::string, Lane, std::less<>> lanes_;  // threads with waiting requests
};

}  // namespace mycojobs
