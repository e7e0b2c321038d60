// Who sees two attempts of one job alive at one time, whatever the store says.
//
// Every job of this test names its process after itself in its first statement (prctl PR_SET_NAME): context, id and
// epoch. A thread walks the process tree of all agents again and again and notes between which moments each of these
// names was seen alive. Two names of one job whose times cross are an overlap: both were alive at one moment, for
// certain, since a time reaches from after the first look to before the last. What is NOT seen: an overlap that is
// shorter than the time between two looks (printed as the witness's resolution), and a process in the instant before
// its first statement. The line `begin <epoch> <time>` that each job logs narrows the first: see Verdict in checks.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chaos/process_tree.h"

namespace mycojobs::test {

struct JobName {
  int context = 0;
  std::uint32_t id = 0;
  auto operator<=>(const JobName&) const = default;
};
// What the name of a process says; the epoch only in its lower part.
struct ProcessName {
  JobName job;
  std::uint64_t epoch = 0;
};
inline constexpr std::uint64_t kEpochRange = 101559956668416;  // 36^9
// False: it is not such a name.
bool parse_process_name(const std::string& comm, ProcessName&);
// The first statements of a job: Python, sets the name and logs `begin <epoch> <CLOCK_BOOTTIME, microseconds>`.
extern const char* const kIntroduce;

struct Life {
  std::uint64_t epoch = 0;  // modulo kEpochRange
  pid_t pid = 0;
  std::uint64_t started = 0;
  std::int64_t first_us = 0, last_us = 0;  // CLOCK_BOOTTIME: alive at both and in between
  std::int64_t last_real_us = 0;           // last_us by CLOCK_REALTIME
};
struct Overlap {
  JobName job;
  Life one, other;
  std::int64_t at_least_us = 0;
};

class Witness {
 public:
  explicit Witness(ProcessTree&);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  std::vector<ProcessSeen> latest() const;  // of the last look
  std::map<JobName, std::vector<Life>> lives() const;
  std::vector<pid_t> launchers() const;  // all that were ever seen
  // Between looks: the middle one and the longest.
  std::pair<std::int64_t, std::int64_t> resolution_us() const;

 private:
  void look();

  ProcessTree& tree_;
  mutable std::mutex mutex_;
  std::vector<ProcessSeen> latest_;
  std::map<JobName, std::vector<Life>> lives_;
  std::vector<std::int64_t> gaps_us_;
  std::vector<pid_t> launchers_;
  std::int64_t looked_us_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

std::vector<Overlap> overlaps(const std::map<JobName, std::vector<Life>>&);

}  // namespace mycojobs::test
