#include "store/redis/reaction_delay.h"

#include <gtest/gtest.h>

#include <vector>

namespace mycojobs {
namespace {

using std::chrono::microseconds;

TEST(ReactionDelay, ProcessAloneReactsAtOnce) {
  ReactionDelay delay(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(delay.draw(), microseconds(0));
    delay.on_success();
  }
}

TEST(ReactionDelay, DoublesWithFailuresAndFallsSlowly) {
  ReactionDelay delay(1);
  for (const int ms : {2, 4, 8, 16, 32, 64, 64}) {
    delay.on_failure();
    EXPECT_EQ(delay.limit(), microseconds(1000 * ms));
  }
  delay.on_success();
  EXPECT_EQ(delay.limit(), microseconds(15238));
  for (int i = 0; i < 18; ++i) delay.on_success();
  EXPECT_GT(delay.limit(), microseconds(1000));
  delay.on_success();
  EXPECT_EQ(delay.limit(), microseconds(0));
}

TEST(ReactionDelay, DrawsUpToTheLimit) {
  ReactionDelay delay(1);
  for (int i = 0; i < 10; ++i) delay.on_failure();
  microseconds sum{};
  for (int i = 0; i < 1000; ++i) {
    const microseconds drawn = delay.draw();
    EXPECT_GE(drawn, microseconds(0));
    EXPECT_LE(drawn, ReactionDelay::kMaxLimit);
    sum += drawn;
  }
  EXPECT_GT(sum, 400 * ReactionDelay::kMaxLimit);
  EXPECT_LT(sum, 600 * ReactionDelay::kMaxLimit);
}

// Each job is claimed by the process that reacts first. The others come too late.
TEST(ReactionDelay, FewOfManyProcessesReactToAJobAndShareTheJobsEvenly) {
  constexpr std::size_t kProcesses = 20;
  constexpr int kJobs = 10000;
  constexpr microseconds kJobInterval{2000}, kStep{100};
  std::vector<ReactionDelay> delays;
  for (std::size_t i = 0; i < kProcesses; ++i) delays.emplace_back(i);
  std::vector<microseconds> next(kProcesses);  // the time of the next reaction of each process
  std::vector<int> claims(kProcesses);
  int reactions = 0, waiting_jobs = 0;
  for (microseconds now{}; now < kJobs * kJobInterval; now += kStep) {
    if (now % kJobInterval == microseconds(0)) ++waiting_jobs;
    for (std::size_t k = 0; k < kProcesses; ++k) {
      const std::size_t i = (k + static_cast<std::size_t>(now / kStep)) % kProcesses;
      if (next[i] > now) continue;
      ++reactions;
      if (waiting_jobs > 0) {
        --waiting_jobs;
        ++claims[i];
        delays[i].on_success();
      } else {
        delays[i].on_failure();
      }
      next[i] = now + kStep + delays[i].draw();
    }
    ASSERT_LT(waiting_jobs, 100);
  }
  EXPECT_LT(reactions, 5 * kJobs);
  for (const int count : claims) {
    EXPECT_GT(count, kJobs / 40);
    EXPECT_LT(count, kJobs / 10);
  }
}

}  // namespace
}  // namespace mycojobs
