#include "worker/runs/read_budget.h"

#include <gtest/gtest.h>

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kNow = 1'000'000;  // the start of a tick
constexpr std::uint64_t kRead = 16384;

ReadBudget::Settings settings() { return {.bytes = 1'000'000, .frames = 1000, .artifact_bytes = 5'000'000}; }

// Returns the bytes read in `ms` from a pipe that is always full. frames: frames per read.
std::uint64_t read_for(ReadBudget& budget, JobPipe pipe, std::uint64_t ms, std::uint64_t frames = 0) {
  std::uint64_t bytes = 0;
  for (std::uint64_t now = kNow; now < kNow + ms;) {
    budget.charge(pipe, kRead, frames, now);
    bytes += kRead;
    now = std::max(now, budget.resume_at_ms(pipe, now));
    if (frames == 0 && bytes > 1'000'000'000) return bytes;
  }
  return bytes;
}

TEST(ReadBudget, FloodIsReadAtTheRateAfterABurst) {
  ReadBudget budget(settings(), false, false);
  const std::uint64_t bytes = read_for(budget, JobPipe::out, 10'000);
  EXPECT_GE(bytes, 12'000'000 - kRead);
  EXPECT_LE(bytes, 12'000'000 + kRead);
}

TEST(ReadBudget, BothStreamsShareTheRate) {
  ReadBudget budget(settings(), false, false);
  EXPECT_GE(read_for(budget, JobPipe::out, 1), 2'000'000U);
  budget.charge(JobPipe::err, 1, 0, kNow);
  EXPECT_GE(budget.resume_at_ms(JobPipe::err, kNow), kNow + 5) << "the other stream has used the budget";
  EXPECT_EQ(budget.resume_at_ms(JobPipe::channel, kNow), 0U) << "progress and artifacts have a separate budget";
}

TEST(ReadBudget, RedactedBytesCountMore) {
  ReadBudget budget(settings(), true, false);
  const std::uint64_t bytes = read_for(budget, JobPipe::out, 10'000);
  EXPECT_LE(bytes, 12'000'000 / ReadBudget::kRedactedWeight + kRead);
}

TEST(ReadBudget, ArtifactsAreReadWithoutAPause) {
  ReadBudget budget(settings(), true, false);
  for (std::uint64_t bytes = 0; bytes < 7'000'000; bytes += kRead) {
    ASSERT_EQ(budget.resume_at_ms(JobPipe::channel, kNow), 0U) << bytes;
    budget.charge(JobPipe::channel, kRead, 1, kNow);
  }
  EXPECT_GT(budget.resume_at_ms(JobPipe::channel, kNow), kNow) << "more bytes than the limit for artifacts";
}

TEST(ReadBudget, FramesAreReadAtTheirRate) {
  ReadBudget budget(settings(), false, true);
  const std::uint64_t reads = read_for(budget, JobPipe::channel, 10'000, 100) / kRead;
  EXPECT_GE(reads, 119U);
  EXPECT_LE(reads, 121U);
}

// Without ticks, every small piece would wake up the agent.
TEST(ReadBudget, SmallPiecesAreReadOncePerTick) {
  ReadBudget budget(settings(), false, false);
  std::uint64_t reads = 0;
  for (std::uint64_t now = kNow; now < kNow + 1000; ++reads) {
    budget.charge(JobPipe::out, 10, 0, now);
    now = budget.resume_at_ms(JobPipe::out, now);
    ASSERT_GT(now, 0U);
  }
  EXPECT_LE(reads, 1000 / ReadBudget::kTickMs + 1);
}

TEST(ReadBudget, CallsDoNotWaitForATick) {
  ReadBudget budget(settings(), false, true);
  budget.charge(JobPipe::channel, 100, 1, kNow);
  EXPECT_EQ(budget.resume_at_ms(JobPipe::channel, kNow), 0U);
  ReadBudget notes(settings(), false, false);
  notes.charge(JobPipe::channel, 100, 1, kNow);
  EXPECT_GT(notes.resume_at_ms(JobPipe::channel, kNow), kNow);
}

TEST(ReadBudget, RatesOfZeroAreNoLimit) {
  ReadBudget budget({.bytes = 0, .frames = 0, .artifact_bytes = 0}, true, true);
  EXPECT_GT(read_for(budget, JobPipe::out, 1), 1'000'000'000U);
  budget.charge(JobPipe::channel, std::uint64_t{1} << 40, 1'000'000, kNow);
  EXPECT_EQ(budget.resume_at_ms(JobPipe::channel, kNow), 0U);
}

}  // namespace
}  // namespace mycojobs::test
