// Detects two attempts of one job that are alive at the same time, independently of the store.
//
// Every job of this test sets its process name in its first statement (prctl PR_SET_NAME) to its context, id and epoch.
// A thread scans the process tree of all agents in a loop and records the first and last observation of each name. Each
// recorded interval starts after the first observation and ends before the last, so two names of one job with
// intersecting intervals were certainly alive at the same time. The witness cannot see an overlap that is shorter than
// the time between two scans (printed as the witness's resolution), or a process before its first statement. The line
// `begin <epoch> <time>` that each job logs reduces the first gap: see Verdict in verdict.h.
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
// The contents of a process name. The epoch is modulo kEpochRange.
struct ProcessName {
  JobName job;
  std::uint64_t epoch = 0;
};
inline constexpr std::uint64_t kEpochRange = 101559956668416;  // 36^9
// Returns false if `comm` is not such a name.
bool parse_process_name(const std::string& comm, ProcessName&);
// The first statements of a job in Python: they set the name and log `begin <epoch> <CLOCK_BOOTTIME in microseconds>`.
extern const char* const kReportStart;

struct Lifetime {
  std::uint64_t epoch = 0;  // modulo kEpochRange
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::int64_t first_us = 0, last_us = 0;  // CLOCK_BOOTTIME: alive at both times and in between
  std::int64_t last_real_us = 0;           // last_us in CLOCK_REALTIME
};
struct Overlap {
  JobName job;
  Lifetime first, second;
  std::int64_t min_overlap_us = 0;
};

class Witness {
 public:
  explicit Witness(ProcessTree&);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  std::vector<ObservedProcess> latest_processes() const;  // from the last scan
  std::map<JobName, std::vector<Lifetime>> lifetimes() const;
  std::vector<pid_t> launchers() const;  // all launchers seen so far
  // Returns the median and the maximum time between scans.
  std::pair<std::int64_t, std::int64_t> resolution_us() const;

 private:
  void scan();

  ProcessTree& tree_;
  mutable std::mutex mutex_;
  std::vector<ObservedProcess> latest_processes_;
  std::map<JobName, std::vector<Lifetime>> lifetimes_;
  std::vector<std::int64_t> gaps_us_;
  std::vector<pid_t> launchers_;
  std::int64_t last_scan_us_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

std::vector<Overlap> find_overlaps(const std::map<JobName, std::vector<Lifetime>>&);

}  // namespace mycojobs::test
