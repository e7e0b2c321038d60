#include "worker/waiting_jobs.h"

#include <algorithm>

namespace mycojobs {

void WaitingJobs::add(Start job, std::uint64_t now_boot_ms) { jobs_.push_back({std::move(job), now_boot_ms}); }

Start WaitingJobs::next(std::uint64_t now_boot_ms) {
  Waiting first = std::move(jobs_.front());
  jobs_.pop_front();
  first.job.has_waited(now_boot_ms - first.since_boot_ms);
  return std::move(first.job);
}

bool WaitingJobs::is_overdue(std::uint64_t now_boot_ms) const {
  return !jobs_.empty() && now_boot_ms - jobs_.front().since_boot_ms >= kPatienceMs;
}

std::deque<WaitingJobs::Waiting>::iterator WaitingJobs::find(RunNumber run) {
  return std::find_if(jobs_.begin(), jobs_.end(), [run](const Waiting& each) { return each.job.run == run; });
}

std::optional<Start> WaitingJobs::take(RunNumber run) {
  const auto found = find(run);
  if (found == jobs_.end()) return std::nullopt;
  Start job = std::move(found->job);
  jobs_.erase(found);
  return job;
}

std::optional<Start> WaitingJobs::take_last() {
  if (jobs_.empty()) return std::nullopt;
  Start job = std::move(jobs_.back().job);
  jobs_.pop_back();
  return job;
}

void WaitingJobs::fence(RunNumber run, std::uint64_t fence_boot_ms) {
  const auto found = find(run);
  if (found == jobs_.end()) return;
  for (RunSpec& spec : found->job.specs) spec.fence_boot_ms = fence_boot_ms;
}

}  // namespace mycojobs
