#include "worker/runs/launcher_monitor.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

constexpr std::uint64_t kNow = 1'000'000;

TEST(LauncherMonitor, NewLauncherIsTriedAtOnceAndThenPeriodically) {
  LauncherMonitor watch;
  EXPECT_TRUE(watch.can_start_runs(kNow));
  EXPECT_TRUE(watch.on_launcher_died(kNow));
  EXPECT_FALSE(watch.can_start_runs(kNow));
  EXPECT_FALSE(watch.is_launcher_alive());
  watch.on_launcher_ready(fail(Code::unavailable, "no launcher to be had"));
  EXPECT_FALSE(watch.can_start_runs(kNow));
  EXPECT_FALSE(watch.on_launcher_died(kNow + LauncherMonitor::kRestartDelayMs - 1));
  EXPECT_TRUE(watch.on_launcher_died(kNow + LauncherMonitor::kRestartDelayMs));
  watch.on_launcher_ready({});
  EXPECT_TRUE(watch.can_start_runs(kNow + LauncherMonitor::kRestartDelayMs));
}

TEST(LauncherMonitor, FailedStartIsFollowedByAPause) {
  LauncherMonitor watch;
  EXPECT_TRUE(watch.on_start_failed(kNow, "out of descriptors"));
  EXPECT_TRUE(watch.is_launcher_alive()) << "the launcher is running";
  EXPECT_FALSE(watch.can_start_runs(kNow + LauncherMonitor::kRestartDelayMs - 1));
  EXPECT_TRUE(watch.can_start_runs(kNow + LauncherMonitor::kRestartDelayMs));
}

TEST(LauncherMonitor, PauseGrowsWhileStartsFail) {
  LauncherMonitor watch;
  std::uint64_t now = kNow;
  for (std::uint64_t pause = LauncherMonitor::kRestartDelayMs; pause < LauncherMonitor::kMaxPauseMs; pause *= 2) {
    EXPECT_TRUE(watch.on_start_failed(now, "out of descriptors"));
    EXPECT_FALSE(watch.on_start_failed(now + pause - 1, "out of descriptors"))
        << "the launcher was started before the end of the pause";
    EXPECT_FALSE(watch.can_start_runs(now + pause - 1));
    EXPECT_TRUE(watch.can_start_runs(now += pause));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(watch.on_start_failed(now, "out of descriptors"));
    EXPECT_TRUE(watch.can_start_runs(now += LauncherMonitor::kMaxPauseMs));
  }
  now += 2 * LauncherMonitor::kMaxPauseMs;
  EXPECT_TRUE(watch.on_start_failed(now, "out of descriptors"));
  EXPECT_TRUE(watch.can_start_runs(now + LauncherMonitor::kRestartDelayMs))
      << "runs have begun since the last shortage";
}

TEST(LauncherMonitor, ReasonIsKeptUntilRunsStartAgain) {
  LauncherMonitor watch;
  EXPECT_EQ(watch.unavailable_reason(kNow), "");
  watch.on_start_failed(kNow, "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow), "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow + LauncherMonitor::kRestartDelayMs + 1), "out of descriptors");
  EXPECT_EQ(watch.unavailable_reason(kNow + 5 * LauncherMonitor::kRestartDelayMs), "");
  watch.on_launcher_died(kNow);
  EXPECT_EQ(watch.unavailable_reason(kNow), "no sandbox is available: see the log");
  watch.on_launcher_ready(fail(Code::unavailable, "sandbox: /a/path: out of memory: raise it"));
  EXPECT_EQ(watch.unavailable_reason(kNow), "out of memory: raise it");
}

}  // namespace
}  // namespace mycojobs
