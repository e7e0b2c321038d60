// What decide() does with a run, event by event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/run_world.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Verb = FlowControl::Verb;

constexpr const char* kDiamond = R"(
name: diamond
jobs:
  a: {script: x, type: python}
  b: {needs: [a], script: x, type: python}
  c: {needs: [a], script: x, type: python}
  d: {needs: [b, c], script: x, type: python}
)";

class Decide : public testing::Test {
 protected:
  static void expect_right(const RunWorld& world) { EXPECT_THAT(world.wrong, testing::IsEmpty()); }
};

TEST_F(Decide, ADiamondRunsToItsEnd) {
  RunWorld world(kDiamond);
  world.start();
  EXPECT_EQ(world.flow(), "started running");
  EXPECT_EQ(world.place("a"), "dispatched queued");
  EXPECT_EQ(world.place("b"), "pending dependencies");
  world.end_job("a");
  world.end_job("c");
  EXPECT_EQ(world.place("d"), "pending dependencies");
  world.end_job("b");
  EXPECT_EQ(world.place("d"), "dispatched queued");
  world.end_job("d");
  EXPECT_EQ(world.flow(), "finished ok");
  EXPECT_EQ(world.journal.size(), 10U) << "two facts a node, one each for start and end";
  expect_right(world);
}

TEST_F(Decide, AFailureStopsWhatHasNotBegunAndLetsTheRestEnd) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  world.fail_job("b");
  EXPECT_EQ(world.flow(), "started stopping");
  world.end_job("c");
  EXPECT_EQ(world.flow(), "error failed");
  EXPECT_EQ(world.place("b"), "failed exit");
  EXPECT_EQ(world.place("c"), "completed ok");
  EXPECT_EQ(world.place("d"), "failed dependency_failed");
  EXPECT_EQ(world.job("d").detail, "dependency_failed");
  EXPECT_THAT(world.run.error, HasSubstr("node b failed: exit"));
  expect_right(world);
}

TEST_F(Decide, CancelTellsWhatRunsAndEndsWhenAllHasEnded) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_EQ(world.flow(), "started cancelling");
  EXPECT_TRUE(world.job("b").cancel_wished);
  EXPECT_TRUE(world.job("c").cancel_wished);
  world.fail_job("b");
  world.end_job("c");
  EXPECT_EQ(world.flow(), "error cancelled");
  EXPECT_EQ(world.place("b"), "cancelled cancelled");
  EXPECT_EQ(world.place("c"), "completed ok") << "it was faster";
  EXPECT_EQ(world.place("d"), "cancelled cancelled");
  expect_right(world);
}

TEST_F(Decide, PauseHoldsWhatWouldBegin) {
  RunWorld world(kDiamond);
  world.start();
  ASSERT_TRUE(world.control(Verb::pause));
  world.end_job("a");
  EXPECT_EQ(world.place("b"), "ready ");
  EXPECT_EQ(world.flow(), "started paused");
  ASSERT_TRUE(world.control(Verb::resume));
  EXPECT_EQ(world.place("b"), "dispatched queued");
  EXPECT_EQ(world.place("c"), "dispatched queued");
  expect_right(world);
}

}  // namespace
}  // namespace mycojobs
