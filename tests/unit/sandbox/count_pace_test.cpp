// Tests that all processes that count locks and listeners of jobs share a tenth of one CPU.
#include "sandbox/seccomp/count_pace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kIntervalUs = CountPace::kMinIntervalUs;

TEST(CountPace, CallersAreServedInTurn) {
  CountPace pace;
  EXPECT_EQ(pace.reserve(1'000'000), 1'000'000U);
  EXPECT_EQ(pace.reserve(1'000'000), 1'000'000U + kIntervalUs);
  EXPECT_EQ(pace.reserve(1'000'001), 1'000'000U + 2 * kIntervalUs);
  EXPECT_EQ(pace.reserve(9'000'000), 9'000'000U) << "after a pause the next turn is immediate";
}

TEST(CountPace, LongCountsDelayTheNext) {
  CountPace pace;
  std::uint64_t turn_us = pace.reserve(1'000'000);
  pace.charge(kIntervalUs / 10);
  EXPECT_EQ(pace.reserve(turn_us), turn_us + kIntervalUs) << "a tenth of the interval is included";
  turn_us = pace.reserve(5'000'000);
  pace.charge(100'000);
  EXPECT_EQ(pace.reserve(turn_us), turn_us + 1'000'000U);
}

TEST(CountPace, ProcessesShareOnePace) {
  CountPace* const pace = CountPace::shared();
  ASSERT_NE(pace, nullptr);
  const std::uint64_t now_us = pace->reserve(0) + 1'000'000'000;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(CountPace::shared()->reserve(now_us) == now_us ? 0 : 1);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pace->reserve(now_us), now_us + kIntervalUs);
}

}  // namespace
}  // namespace mycojobs::sandbox
