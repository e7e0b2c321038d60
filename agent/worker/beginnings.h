// Which lanes (worker/lanes.h) answer no more, as those that jobs are begun on show it: a plugin or a disk may stand
// still for as long as it likes, and the slots of the jobs behind it should not. No thread and no clock: moments come
// in, on CLOCK_BOOTTIME.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace mycojobs {

class Beginnings {
 public:
  // Longer than a plugin is given to be loaded and to prepare a job, and than a disk needs for what jobs leave.
  static constexpr std::uint64_t kPatienceMs = 10000;

  bool empty() const { return lanes_.empty(); }
  void asked_for(const std::string& lane, std::uint64_t now_boot_ms);
  void answered(const std::string& lane, std::uint64_t now_boot_ms);  // once for each
  // It has been asked, and has answered nothing for kPatienceMs.
  bool hangs(std::string_view lane, std::uint64_t now_boot_ms) const;

 private:
  struct Lane {
    std::size_t waiting = 0;
    std::uint64_t since_boot_ms = 0;  // the last answer, or the first that was asked for
  };
  std::map<std::string, Lane, std::less<>> lanes_;  // of those that something is asked of
};

}  // namespace mycojobs
