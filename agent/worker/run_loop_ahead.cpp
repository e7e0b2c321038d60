// Jobs that were claimed ahead of the slots, so that a slot that becomes free need not wait for the store. They wait
// here, in order and not for long.
#include <algorithm>

#include "worker/run_loop.h"

namespace mycojobs {

void RunLoop::queue_or_begin(Start start) {
  if (waiting_.empty() && has_slot()) return begin(start);
  waiting_.push_back({std::move(start), clock_.boot_ms()});
}

void RunLoop::begin_waiting() {
  while (!waiting_.empty() && has_slot()) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    // What it may take counts from its start.
    if (next.job.deadline_boot_ms > 0) next.job.deadline_boot_ms += clock_.boot_ms() - next.since_boot_ms;
    begin(next.job);
  }
  if (waiting_.empty() || clock_.boot_ms() - waiting_.front().since_boot_ms < Pace::kPatienceMs) return;
  pace_.stalled();
  give_back_waiting("the slots of its runner stay busy");
}

// The last one first: what is given back is next in its queue.
void RunLoop::give_back_waiting(const std::string& why) {
  for (; !waiting_.empty(); waiting_.pop_back()) give_back(waiting_.back().job, why);
}

// It has not begun: no delivery is counted. If it is to be cancelled the store ends it.
void RunLoop::give_back(const Start& job, const std::string& why) {
  callbacks_.post(Outgoing{job.run, Release{job.claim, why, false}, true});
}

RunLoop::Waiting* RunLoop::find_waiting(RunNumber run) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [run](const auto& each) { return each.job.run == run; });
  return found == waiting_.end() ? nullptr : &*found;
}

void RunLoop::fence_waiting(RunNumber run, std::uint64_t boot_ms) {
  if (Waiting* found = find_waiting(run)) {
    for (RunSpec& spec : found->job.specs) spec.fence_boot_ms = boot_ms;
  }
}

void RunLoop::kill_waiting(RunNumber run) {
  if (run == 0) return give_back_waiting("cancelled before it began");
  if (Waiting* found = find_waiting(run)) {
    give_back(found->job, "cancelled before it began");
    std::erase_if(waiting_, [run](const auto& each) { return each.job.run == run; });
  }
}

}  // namespace mycojobs
