// Detects strands (base/strands/strand_pool.h) that do not answer. A plugin or a disk can block without a limit, and
// the jobs that wait for it must not occupy slots. Uses no thread and no clock: all times are arguments, on
// CLOCK_BOOTTIME. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace mycojobs {

class HangDetector {
 public:
  // Longer than the time limit for loading a plugin and preparing a job, and longer than a disk needs for artifacts.
  static constexpr std::uint64_t kTimeoutMs = 10000;

  bool empty() const { return strands_.empty(); }
  void on_request_sent(const std::string& strand, std::uint64_t now_boot_ms);
  // REQUIRES: one call for each on_request_sent().
  void on_request_answered(const std::string& strand, std::uint64_t now_boot_ms);
  // Returns whether requests are waiting and none was answered for kTimeoutMs.
  bool is_hanging(std::string_view strand, std::uint64_t now_boot_ms) const;

 private:
  struct StrandState {
    std::size_t waiting_requests = 0;
    std::uint64_t since_boot_ms = 0;  // time of the last answer, or of the first request
  };
  std::map<std::string, StrandState, std::less<>> strands_;  // strands with waiting requests
};

}  // namespace mycojobs
