#include "worker/runs/prefetched_jobs.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

constexpr std::uint64_t kClaimedUs = 1'000'000;

JobStart job(RunNumber run, std::uint64_t deadline_boot_ms = 0) {
  JobStart start;
  start.run = run;
  start.deadline_boot_ms = deadline_boot_ms;
  start.specs.resize(2);
  return start;
}

TEST(WaitingJobs, StartInTheOrderOfArrival) {
  PrefetchedJobs waiting;
  for (RunNumber run = 1; run <= 3; ++run) waiting.add(job(run), kClaimedUs);
  for (RunNumber run = 1; run <= 3; ++run) EXPECT_EQ(waiting.pop_first(kClaimedUs).run, run);
  EXPECT_TRUE(waiting.empty());
}

TEST(WaitingJobs, DeadlineMovesByTheWait) {
  PrefetchedJobs waiting;
  waiting.add(job(1, kClaimedUs + 500), kClaimedUs);
  waiting.add(job(2), kClaimedUs);
  EXPECT_EQ(waiting.pop_first(kClaimedUs + 20).deadline_boot_ms, kClaimedUs + 520);
  EXPECT_EQ(waiting.pop_first(kClaimedUs + 20).deadline_boot_ms, 0U) << "the job has no deadline";
}

TEST(WaitingJobs, TimeoutIsThatOfTheFirst) {
  PrefetchedJobs waiting;
  EXPECT_FALSE(waiting.is_overdue(kClaimedUs));
  waiting.add(job(1), kClaimedUs);
  waiting.add(job(2), kClaimedUs + 40);
  EXPECT_FALSE(waiting.is_overdue(kClaimedUs + PrefetchedJobs::kTimeoutMs - 1));
  EXPECT_TRUE(waiting.is_overdue(kClaimedUs + PrefetchedJobs::kTimeoutMs));
  (void)waiting.pop_first(kClaimedUs + PrefetchedJobs::kTimeoutMs);
  EXPECT_FALSE(waiting.is_overdue(kClaimedUs + PrefetchedJobs::kTimeoutMs));
}

TEST(WaitingJobs, RemovalKeepsTheOrderOfTheOthers) {
  PrefetchedJobs waiting;
  for (RunNumber run = 1; run <= 4; ++run) waiting.add(job(run), kClaimedUs);
  EXPECT_EQ(waiting.remove(2)->run, 2U);
  EXPECT_FALSE(waiting.remove(2));
  EXPECT_EQ(waiting.pop_last()->run, 4U);
  EXPECT_EQ(waiting.pop_last()->run, 3U);
  EXPECT_EQ(waiting.pop_first(kClaimedUs).run, 1U);
  EXPECT_FALSE(waiting.pop_last());
}

TEST(WaitingJobs, FenceCoversAllStages) {
  PrefetchedJobs waiting;
  waiting.add(job(1), kClaimedUs);
  waiting.set_fence(1, 4711);
  waiting.set_fence(2, 1);
  const JobStart start = waiting.pop_first(kClaimedUs);
  for (const RunSpec& spec : start.specs) EXPECT_EQ(spec.fence_boot_ms, 4711U);
}

}  // namespace
}  // namespace mycojobs
