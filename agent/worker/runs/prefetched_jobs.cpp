#include "worker/runs/prefetched_jobs.h"

#include <algorithm>

namespace mycojobs {

void PrefetchedJobs::add(JobStart job, std::uint64_t now_boot_ms) { jobs_.push_back({std::move(job), now_boot_ms}); }

JobStart PrefetchedJobs::pop_first(std::uint64_t now_boot_ms) {
  WaitingJob first = std::move(jobs_.front());
  jobs_.pop_front();
  first.job.extend_deadline(now_boot_ms - first.since_boot_ms);
  return std::move(first.job);
}

bool PrefetchedJobs::is_overdue(std::uint64_t now_boot_ms) const {
  return !jobs_.empty() && now_boot_ms - jobs_.front().since_boot_ms >= kTimeoutMs;
}

std::deque<PrefetchedJobs::WaitingJob>::iterator PrefetchedJobs::find(RunNumber run) {
  return std::find_if(jobs_.begin(), jobs_.end(), [run](const WaitingJob& waiting) { return waiting.job.run == run; });
}

std::optional<JobStart> PrefetchedJobs::remove(RunNumber run) {
  const auto found = find(run);
  if (found == jobs_.end()) return std::nullopt;
  JobStart job = std::move(found->job);
  jobs_.erase(found);
  return job;
}

std::optional<JobStart> PrefetchedJobs::pop_last() {
  if (jobs_.empty()) return std::nullopt;
  JobStart job = std::move(jobs_.back().job);
  jobs_.pop_back();
  return job;
}

void PrefetchedJobs::set_fence(RunNumber run, std::uint64_t fence_boot_ms) {
  const auto found = find(run);
  if (found == jobs_.end()) return;
  for (RunSpec& spec : found->job.specs) spec.fence_boot_ms = fence_boot_ms;
}

}  // namespace mycojobs
