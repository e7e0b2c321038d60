#include "worker/runs/launcher_monitor.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

constexpr std::uint64_t kNow = 1'000'000;

TEST(LauncherWatch, NewLauncherIsTriedAtOnceAndThenPeriodically) {
  LauncherWatch watch;
  EXPECT_TRUE(watch.may_start(kNow));
  EXPECT_TRUE(watch.try_now(kNow));
  EXPECT_FALSE(watch.may_start(kNow));
  EXPECT_FALSE(watch.ready());
  watch.on_launcher_ready(fail(Code::unavailable, "no launcher to be had"));
  EXPECT_FALSE(watch.may_start(kNow));
  EXPECT_FALSE(watch.try_now(kNow + LauncherWatch::kReviveMs - 1));
  EXPECT_TRUE(watch.try_now(kNow + LauncherWatch::kReviveMs));
  watch.on_launcher_ready({});
  EXPECT_TRUE(watch.may_start(kNow + LauncherWatch::kReviveMs));
}

TEST(LauncherWatch, FailedStartIsFollowedByAPause) {
  LauncherWatch watch;
  EXPECT_TRUE(watch.failed_to_start(kNow, "out of descriptors"));
  EXPECT_TRUE(watch.ready()) << "its launcher lives";
  EXPECT_FALSE(watch.may_start(kNow + LauncherWatch::kReviveMs - 1));
  EXPECT_TRUE(watch.may_start(kNow + LauncherWatch::kReviveMs));
}

TEST(LauncherWatch, PauseGrowsWhileStartsFail) {
  LauncherWatch watch;
  std::uint64_t now = kNow;
  for (std::uint64_t pause = LauncherWatch::kReviveMs; pause < LauncherWatch::kMaxPauseMs; pause *= 2) {
    EXPECT_TRUE(watch.failed_to_start(now, "out of descriptors"));
    EXPECT_FALSE(watch.failed_to_start(now + pause - 1, "out of descriptors")) << "it was started before the pause";
    EXPECT_FALSE(watch.may_start(now + pause - 1));
    EXPECT_TRUE(watch.may_start(now += pause));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(watch.failed_to_start(now, "out of descriptors"));
    EXPECT_TRUE(watch.may_start(now += LauncherWatch::kMaxPauseMs));
  }
  now += 2 * LauncherWatch::kMaxPauseMs;
  EXPECT_TRUE(watch.failed_to_start(now, "out of descriptors"));
  EXPECT_TRUE(watch.may_start(now + LauncherWatch::kReviveMs)) << "runs have begun since the last shortage";
}

TEST(LauncherWatch, ReasonIsKeptUntilRunsStartAgain) {
  LauncherWatch watch;
  EXPECT_EQ(watch.unavailable_reason(kNow), "");
  watch.failed_to_start(kNow, "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow), "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow + LauncherWatch::kReviveMs + 1), "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow + 5 * LauncherWatch::kReviveMs), "");
  watch.try_now(kNow);
  EXPECT_EQ(watch.unavailable_reason(kNow), "no sandbox is available: see the log");
  watch.on_launcher_ready(fail(Code::unavailable, "sandbox: /a/path: out of memory: raise it"));
  EXPECT_EQ(watch.unavailable_reason(kNow), "out of memory: raise it");
}

}  // namespace
}  // namespace mycojobs
