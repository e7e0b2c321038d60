#include "worker/launcher_watch.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

constexpr std::uint64_t kNow = 1'000'000;

TEST(LauncherWatch, NewLauncherIsTriedAtOnceAndThenOnceInAWhile) {
  LauncherWatch watch;
  EXPECT_TRUE(watch.may_start(kNow));
  EXPECT_TRUE(watch.try_now(kNow));
  EXPECT_FALSE(watch.may_start(kNow));
  EXPECT_FALSE(watch.ready());
  watch.revived(fail(Code::unavailable, "no launcher to be had"));
  EXPECT_FALSE(watch.may_start(kNow));
  EXPECT_FALSE(watch.try_now(kNow + LauncherWatch::kReviveMs - 1));
  EXPECT_TRUE(watch.try_now(kNow + LauncherWatch::kReviveMs));
  watch.revived({});
  EXPECT_TRUE(watch.may_start(kNow + LauncherWatch::kReviveMs));
}

TEST(LauncherWatch, NothingIsStartedForAMomentAfterAStartThatFailed) {
  LauncherWatch watch;
  watch.failed_to_start(kNow);
  EXPECT_TRUE(watch.ready()) << "its launcher lives";
  EXPECT_FALSE(watch.may_start(kNow + LauncherWatch::kReviveMs - 1));
  EXPECT_TRUE(watch.may_start(kNow + LauncherWatch::kReviveMs));
}

}  // namespace
}  // namespace mycojobs
