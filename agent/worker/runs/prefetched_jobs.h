// Jobs that were claimed ahead, so that a slot that becomes free does not wait for the store. They wait in order and
// only for a short time, since another agent may have a free slot. Uses no clock: all times are arguments, on
// CLOCK_BOOTTIME. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "worker/worker_types.h"

namespace mycojobs {

class PrefetchedJobs {
 public:
  static constexpr std::uint64_t kTimeoutMs = 50;

  bool empty() const { return jobs_.empty(); }
  void add(JobStart, std::uint64_t now_boot_ms);
  // Removes and returns the first job. Its time limit starts with the run. REQUIRES: !empty().
  JobStart pop_first(std::uint64_t now_boot_ms);
  // Returns whether the first job has waited for longer than kTimeoutMs. All jobs should then be released to their
  // queues.
  bool is_overdue(std::uint64_t now_boot_ms) const;

  // Removes and returns the job of a run, or returns no value if it does not wait.
  std::optional<JobStart> remove(RunNumber);
  // Removes and returns the last job, or returns no value if no job waits. The job that is released last is the next
  // job of its queue, so jobs are released from the end.
  std::optional<JobStart> pop_last();
  // Sets the new fence of a run if it waits.
  void set_fence(RunNumber, std::uint64_t fence_boot_ms);

 private:
  struct WaitingJob {
    JobStart job;
    std::uint64_t since_boot_ms = 0;
  };
  std::deque<WaitingJob>::iterator find(RunNumber);

  std::deque<WaitingJob> jobs_;
};

}  // namespace mycojobs
