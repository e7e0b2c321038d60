// Jobs that were claimed ahead of the slots, so that a slot that becomes free need not wait for the store. They wait
// here in order, and not for long: another agent may have a slot. No thread and no clock: moments come in, on
// CLOCK_BOOTTIME.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "worker/types.h"

namespace mycojobs {

class WaitingJobs {
 public:
  static constexpr std::uint64_t kPatienceMs = 50;

  bool empty() const { return jobs_.empty(); }
  void add(Start, std::uint64_t now_boot_ms);
  // The first one, not of none. What it may take counts from its start, not from here.
  Start next(std::uint64_t now_boot_ms);
  // The first one has waited for longer than kPatienceMs: all of them should go back to their queues.
  bool is_overdue(std::uint64_t now_boot_ms) const;

  // The run waits no more; nothing if it did not wait.
  std::optional<Start> take(RunNumber);
  // Likewise the last one. What is given back last is next in its queue, so this is the order to give back in.
  std::optional<Start> take_last();
  // The new fence of a run, if it waits.
  void fence(RunNumber, std::uint64_t fence_boot_ms);

 private:
  struct Waiting {
    Start job;
    std::uint64_t since_boot_ms = 0;
  };
  std::deque<Waiting>::iterator find(RunNumber);

  std::deque<Waiting> jobs_;
};

}  // namespace mycojobs
