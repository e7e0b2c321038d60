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
  static void expect_right(const RunWorld& deployment) { EXPECT_THAT(deployment.violations, testing::IsEmpty()); }
};

TEST_F(Decide, DiamondRunsToItsEnd) {
  RunWorld deployment(kDiamond);
  deployment.start();
  EXPECT_EQ(deployment.describe_flow(), "started running");
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("b"), "pending dependencies");
  deployment.end_job("a");
  deployment.end_job("c");
  EXPECT_EQ(deployment.describe_node("d"), "pending dependencies");
  deployment.end_job("b");
  EXPECT_EQ(deployment.describe_node("d"), "dispatched queued");
  deployment.end_job("d");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_EQ(deployment.journal.size(), 10U) << "two facts for each node, and one each for start and end";
  expect_right(deployment);
}

TEST_F(Decide, FailureStopsUnstartedNodesOnly) {
  RunWorld deployment(kDiamond);
  deployment.start();
  deployment.end_job("a");
  deployment.fail_job("b");
  EXPECT_EQ(deployment.describe_flow(), "started stopping");
  deployment.end_job("c");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  EXPECT_EQ(deployment.describe_node("b"), "failed exit");
  EXPECT_EQ(deployment.describe_node("c"), "completed ok");
  EXPECT_EQ(deployment.describe_node("d"), "failed dependency_failed");
  EXPECT_EQ(deployment.job("d").detail, "dependency_failed");
  EXPECT_THAT(deployment.run.error, HasSubstr("node b failed: exit"));
  expect_right(deployment);
}

TEST_F(Decide, CancelIsSentToRunningNodesAndAwaited) {
  RunWorld deployment(kDiamond);
  deployment.start();
  deployment.end_job("a");
  ASSERT_TRUE(deployment.control(Verb::cancel));
  EXPECT_EQ(deployment.describe_flow(), "started cancelling");
  EXPECT_TRUE(deployment.job("b").cancel_asked);
  EXPECT_TRUE(deployment.job("c").cancel_asked);
  deployment.fail_job("b");
  deployment.end_job("c");
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  EXPECT_EQ(deployment.describe_node("b"), "cancelled cancelled");
  EXPECT_EQ(deployment.describe_node("c"), "completed ok") << "node c was faster";
  EXPECT_EQ(deployment.describe_node("d"), "cancelled cancelled");
  expect_right(deployment);
}

TEST_F(Decide, PauseHoldsUnstartedNodes) {
  RunWorld deployment(kDiamond);
  deployment.start();
  ASSERT_TRUE(deployment.control(Verb::pause));
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_node("b"), "ready ");
  EXPECT_EQ(deployment.describe_flow(), "started paused");
  ASSERT_TRUE(deployment.control(Verb::resume));
  EXPECT_EQ(deployment.describe_node("b"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("c"), "dispatched queued");
  expect_right(deployment);
}

TEST_F(Decide, DependentsRunAfterAContinuedFailure) {
  RunWorld deployment(R"({name: c, jobs: {a: {script: x, type: python, on_error: continue},
    b: {needs: [a], script: x, type: python, when: [{key: a.$status, equals: error}]},
    c: {needs: [a], script: x, type: python, when: [{key: a.$status, equals: finished}]}}})");
  deployment.start();
  deployment.fail_job("a");
  EXPECT_EQ(deployment.describe_node("a"), "completed continued");
  EXPECT_EQ(deployment.describe_node("b"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("c"), "cancelled skipped");
  EXPECT_THAT(deployment.node("c").error, HasSubstr("a.$status is \"error\", not \"finished\""));
  EXPECT_EQ(deployment.job("c").detail, "skipped");
  deployment.end_job("b");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

constexpr const char* kRoute = R"({name: r, jobs: {a: {script: x, type: python, on_error: mend},
  mend: {script: x, type: python, on_error: stop}, only: {needs: [a], script: x, type: python},
  both: {needs: [a, mend], script: x, type: python}}})";

TEST_F(Decide, RoutedFailureRunsItsErrorNode) {
  RunWorld deployment(kRoute);
  deployment.start();
  EXPECT_EQ(deployment.describe_node("mend"), "pending on_call");
  deployment.fail_job("a");
  EXPECT_EQ(deployment.describe_node("a"), "failed exit");
  EXPECT_EQ(deployment.describe_node("mend"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("only"), "pending dependencies");
  deployment.end_job("mend");
  EXPECT_EQ(deployment.describe_node("a"), "completed handled");
  EXPECT_EQ(deployment.describe_node("only"), "cancelled skipped");
  EXPECT_EQ(deployment.describe_node("both"), "dispatched queued");
  deployment.end_job("both");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

TEST_F(Decide, FailedErrorNodeStopsTheFlow) {
  RunWorld deployment(kRoute);
  deployment.start();
  deployment.fail_job("a");
  deployment.fail_job("mend");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  EXPECT_EQ(deployment.describe_node("a"), "failed exit");
  EXPECT_EQ(deployment.describe_node("only"), "failed dependency_failed");
  ASSERT_TRUE(deployment.control(Verb::retry, "a"));
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("mend"), "pending on_call");
  deployment.fail_job("a");
  deployment.end_job("mend");
  EXPECT_EQ(deployment.job("mend").queued, 2);
  deployment.end_job("both");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

// Regression test for a case that the model found: each error node waited for the end of the other.
TEST_F(Decide, FailingErrorNodesOfEachOtherStopTheFlow) {
  // Definitions with such a cycle are rejected, but a plan that contains one must still terminate.
  FlowPlan plan = plan_of_yaml(R"({name: r, jobs: {a: {script: x, type: python, on_error: one},
    one: {script: x, type: python, on_error: two}, two: {script: x, type: python}}})");
  plan.nodes[*plan.find("two")].on_error = OnError::route;
  plan.nodes[*plan.find("two")].error_node = plan.find("one");
  RunWorld deployment(std::move(plan));
  deployment.start();
  deployment.fail_job("a");
  deployment.fail_job("one");
  deployment.fail_job("two");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  EXPECT_EQ(deployment.describe_node("a"), "failed exit");
  expect_right(deployment);
}

TEST_F(Decide, UnusedErrorNodeSettlesAndReleasesDependents) {
  RunWorld deployment(kRoute);
  deployment.start();
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_node("mend"), "cancelled not_needed");
  EXPECT_EQ(deployment.describe_node("both"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("only"), "dispatched queued");
  expect_right(deployment);
}

TEST_F(Decide, CompensationsRunSeriallyInReverseOrder) {
  RunWorld deployment(kSaga);
  deployment.start();
  deployment.end_job("a");
  deployment.end_job("b");
  deployment.fail_job("c");
  EXPECT_EQ(deployment.describe_flow(), "started compensating");
  EXPECT_EQ(deployment.describe_node("undo_b"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("undo_a"), "pending on_call");
  deployment.fail_job("undo_b");
  EXPECT_EQ(deployment.describe_node("undo_a"), "dispatched queued") << "the next compensation runs";
  EXPECT_FALSE(deployment.control(Verb::retry)) << "a compensated run cannot be retried";
  deployment.end_job("undo_a");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  EXPECT_EQ(deployment.describe_node("undo_c"), "cancelled not_needed") << "c had not completed";
  EXPECT_THAT(deployment.run.error, HasSubstr("compensation undo_b failed"));
  const auto refused = deployment.control(Verb::retry);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("replay"));
  expect_right(deployment);
}

TEST_F(Decide, CompensationsRunAfterACancel) {
  RunWorld deployment(kSaga);
  deployment.start();
  deployment.end_job("a");
  ASSERT_TRUE(deployment.control(Verb::cancel));
  ASSERT_TRUE(deployment.control(Verb::cancel)) << "a second cancel adds nothing";
  deployment.fail_job("b");
  EXPECT_EQ(deployment.describe_node("undo_a"), "dispatched queued");
  deployment.end_job("undo_a");
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  EXPECT_FALSE(deployment.control(Verb::retry)) << "a cancelled run cannot be retried";
  expect_right(deployment);
}

TEST_F(Decide, RetryOfAnEndedFlowRunsFailedNodesAgain) {
  RunWorld deployment(kDiamond);
  deployment.start();
  deployment.end_job("a");
  deployment.fail_job("b");
  deployment.end_job("c");
  ASSERT_EQ(deployment.describe_flow(), "error failed");
  ASSERT_TRUE(deployment.control(Verb::retry, "b"));
  EXPECT_EQ(deployment.describe_flow(), "started running");
  EXPECT_EQ(deployment.job("b").queued, 2);
  EXPECT_EQ(deployment.describe_node("c"), "completed ok") << "node c has not run again";
  deployment.end_job("b");
  deployment.end_job("d");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_TRUE(deployment.run.error.empty());
  expect_right(deployment);
}

TEST_F(Decide, RetryDuringAStopContinuesTheFlow) {
  RunWorld deployment(kDiamond);
  deployment.start();
  deployment.end_job("a");
  deployment.fail_job("b");
  ASSERT_EQ(deployment.describe_flow(), "started stopping");
  ASSERT_TRUE(deployment.control(Verb::retry, "b"));
  EXPECT_EQ(deployment.describe_flow(), "started running");
  deployment.end_job("c");
  deployment.end_job("b");
  deployment.end_job("d");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

TEST_F(Decide, RetryOfANodeNamesTheOtherFailedNodes) {
  RunWorld deployment(kDiamond);
  deployment.start();
  deployment.end_job("a");
  deployment.fail_job("b");
  deployment.fail_job("c");
  const auto refused = deployment.control(Verb::retry, "b");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("node c has failed too"));
  EXPECT_FALSE(deployment.control(Verb::retry, "a"));
  EXPECT_EQ(deployment.control(Verb::retry, "zz").error().code, Code::not_found);
  ASSERT_TRUE(deployment.control(Verb::retry));
  EXPECT_EQ(deployment.job("b").queued, 2);
  EXPECT_EQ(deployment.job("c").queued, 2);
  expect_right(deployment);
}

TEST_F(Decide, MaxParallelLimitsJobsAndNotWaits) {
  RunWorld deployment(R"({name: p, max_parallel: 2, jobs: {a: {script: x, type: python}, b: {script: x, type: python},
    c: {script: x, type: python}, w: {wait: 1h}, x: {approval: {}}}})");
  deployment.start();
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("b"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("c"), "ready ");
  EXPECT_EQ(deployment.describe_node("w"), "dispatched wait");
  EXPECT_EQ(deployment.describe_node("x"), "dispatched approval");
  deployment.end_job("b");
  EXPECT_EQ(deployment.describe_node("c"), "dispatched queued");
  expect_right(deployment);
}

}  // namespace
}  // namespace mycojobs
