// decide() with the events of a run, one at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/run_world.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using Verb = FlowControl::Verb;

class Decide : public testing::Test {
 protected:
  static void expect_right(const RunWorld& world) { EXPECT_THAT(world.wrong, testing::IsEmpty()); }
};

TEST_F(Decide, DiamondRunsToItsEnd) {
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

TEST_F(Decide, FailureStopsUnstartedNodesOnly) {
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

TEST_F(Decide, CancelIsSentToRunningNodesAndAwaited) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_EQ(world.flow(), "started cancelling");
  EXPECT_TRUE(world.job("b").cancel_asked);
  EXPECT_TRUE(world.job("c").cancel_asked);
  world.fail_job("b");
  world.end_job("c");
  EXPECT_EQ(world.flow(), "error cancelled");
  EXPECT_EQ(world.place("b"), "cancelled cancelled");
  EXPECT_EQ(world.place("c"), "completed ok") << "it was faster";
  EXPECT_EQ(world.place("d"), "cancelled cancelled");
  expect_right(world);
}

TEST_F(Decide, PauseHoldsUnstartedNodes) {
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

TEST_F(Decide, DependentsRunAfterAContinuedFailure) {
  RunWorld world(R"({name: c, jobs: {a: {script: x, type: python, on_error: continue},
    b: {needs: [a], script: x, type: python, when: [{key: a.$status, equals: error}]},
    c: {needs: [a], script: x, type: python, when: [{key: a.$status, equals: finished}]}}})");
  world.start();
  world.fail_job("a");
  EXPECT_EQ(world.place("a"), "completed continued");
  EXPECT_EQ(world.place("b"), "dispatched queued");
  EXPECT_EQ(world.place("c"), "cancelled skipped");
  EXPECT_THAT(world.node("c").error, HasSubstr("a.$status is \"error\", not \"finished\""));
  EXPECT_EQ(world.job("c").detail, "skipped");
  world.end_job("b");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

constexpr const char* kRoute = R"({name: r, jobs: {a: {script: x, type: python, on_error: mend},
  mend: {script: x, type: python, on_error: stop}, only: {needs: [a], script: x, type: python},
  both: {needs: [a, mend], script: x, type: python}}})";

TEST_F(Decide, RoutedFailureRunsItsErrorNode) {
  RunWorld world(kRoute);
  world.start();
  EXPECT_EQ(world.place("mend"), "pending on_call");
  world.fail_job("a");
  EXPECT_EQ(world.place("a"), "failed exit");
  EXPECT_EQ(world.place("mend"), "dispatched queued");
  EXPECT_EQ(world.place("only"), "pending dependencies");
  world.end_job("mend");
  EXPECT_EQ(world.place("a"), "completed handled");
  EXPECT_EQ(world.place("only"), "cancelled skipped");
  EXPECT_EQ(world.place("both"), "dispatched queued");
  world.end_job("both");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

TEST_F(Decide, FailedErrorNodeStopsTheFlow) {
  RunWorld world(kRoute);
  world.start();
  world.fail_job("a");
  world.fail_job("mend");
  EXPECT_EQ(world.flow(), "error failed");
  EXPECT_EQ(world.place("a"), "failed exit");
  EXPECT_EQ(world.place("only"), "failed dependency_failed");
  ASSERT_TRUE(world.control(Verb::retry, "a"));
  EXPECT_EQ(world.place("a"), "dispatched queued");
  EXPECT_EQ(world.place("mend"), "pending on_call");
  world.fail_job("a");
  world.end_job("mend");
  EXPECT_EQ(world.job("mend").queued, 2);
  world.end_job("both");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

// Regression test for a case that the model found: each error node waited for the end of the other.
TEST_F(Decide, FailingErrorNodesOfEachOtherStopTheFlow) {
  // Definitions with such a cycle are rejected, but a plan that contains one must still terminate.
  FlowPlan plan = plan_of_yaml(R"({name: r, jobs: {a: {script: x, type: python, on_error: one},
    one: {script: x, type: python, on_error: two}, two: {script: x, type: python}}})");
  plan.nodes[*plan.find("two")].on_error = OnError::route;
  plan.nodes[*plan.find("two")].error_node = plan.find("one");
  RunWorld world(std::move(plan));
  world.start();
  world.fail_job("a");
  world.fail_job("one");
  world.fail_job("two");
  EXPECT_EQ(world.flow(), "error failed");
  EXPECT_EQ(world.place("a"), "failed exit");
  expect_right(world);
}

TEST_F(Decide, UnusedErrorNodeSettlesAndReleasesDependents) {
  RunWorld world(kRoute);
  world.start();
  world.end_job("a");
  EXPECT_EQ(world.place("mend"), "cancelled not_needed");
  EXPECT_EQ(world.place("both"), "dispatched queued");
  EXPECT_EQ(world.place("only"), "dispatched queued");
  expect_right(world);
}

TEST_F(Decide, CompensationsRunSeriallyInReverseOrder) {
  RunWorld world(kSaga);
  world.start();
  world.end_job("a");
  world.end_job("b");
  world.fail_job("c");
  EXPECT_EQ(world.flow(), "started compensating");
  EXPECT_EQ(world.place("undo_b"), "dispatched queued");
  EXPECT_EQ(world.place("undo_a"), "pending on_call");
  world.fail_job("undo_b");
  EXPECT_EQ(world.place("undo_a"), "dispatched queued") << "the next one runs";
  EXPECT_FALSE(world.control(Verb::retry)) << "what was done is undone";
  world.end_job("undo_a");
  EXPECT_EQ(world.flow(), "error failed");
  EXPECT_EQ(world.place("undo_c"), "cancelled not_needed") << "c had not completed";
  EXPECT_THAT(world.run.error, HasSubstr("compensation undo_b failed"));
  const auto refused = world.control(Verb::retry);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("replay"));
  expect_right(world);
}

TEST_F(Decide, CompensationsRunAfterACancel) {
  RunWorld world(kSaga);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::cancel));
  ASSERT_TRUE(world.control(Verb::cancel)) << "again: nothing more";
  world.fail_job("b");
  EXPECT_EQ(world.place("undo_a"), "dispatched queued");
  world.end_job("undo_a");
  EXPECT_EQ(world.flow(), "error cancelled");
  EXPECT_FALSE(world.control(Verb::retry)) << "cancelled is cancelled";
  expect_right(world);
}

TEST_F(Decide, RetryOfAnEndedFlowRunsFailedNodesAgain) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  world.fail_job("b");
  world.end_job("c");
  ASSERT_EQ(world.flow(), "error failed");
  ASSERT_TRUE(world.control(Verb::retry, "b"));
  EXPECT_EQ(world.flow(), "started running");
  EXPECT_EQ(world.job("b").queued, 2);
  EXPECT_EQ(world.place("c"), "completed ok") << "not again";
  world.end_job("b");
  world.end_job("d");
  EXPECT_EQ(world.flow(), "finished ok");
  EXPECT_TRUE(world.run.error.empty());
  expect_right(world);
}

TEST_F(Decide, RetryDuringAStopContinuesTheFlow) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  world.fail_job("b");
  ASSERT_EQ(world.flow(), "started stopping");
  ASSERT_TRUE(world.control(Verb::retry, "b"));
  EXPECT_EQ(world.flow(), "started running");
  world.end_job("c");
  world.end_job("b");
  world.end_job("d");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

TEST_F(Decide, RetryOfANodeNamesTheOtherFailedNodes) {
  RunWorld world(kDiamond);
  world.start();
  world.end_job("a");
  world.fail_job("b");
  world.fail_job("c");
  const auto refused = world.control(Verb::retry, "b");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("node c has failed too"));
  EXPECT_FALSE(world.control(Verb::retry, "a"));
  EXPECT_EQ(world.control(Verb::retry, "zz").error().code, Code::not_found);
  ASSERT_TRUE(world.control(Verb::retry));
  EXPECT_EQ(world.job("b").queued, 2);
  EXPECT_EQ(world.job("c").queued, 2);
  expect_right(world);
}

TEST_F(Decide, MaxParallelLimitsJobsAndNotWaits) {
  RunWorld world(R"({name: p, max_parallel: 2, jobs: {a: {script: x, type: python}, b: {script: x, type: python},
    c: {script: x, type: python}, w: {wait: 1h}, x: {approval: {}}}})");
  world.start();
  EXPECT_EQ(world.place("a"), "dispatched queued");
  EXPECT_EQ(world.place("b"), "dispatched queued");
  EXPECT_EQ(world.place("c"), "ready ");
  EXPECT_EQ(world.place("w"), "dispatched wait");
  EXPECT_EQ(world.place("x"), "dispatched approval");
  world.end_job("b");
  EXPECT_EQ(world.place("c"), "dispatched queued");
  expect_right(world);
}

}  // namespace
}  // namespace mycojobs
