// decide() with answers of people, the passing of time, and events of other flows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/run_world.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using Verb = FlowControl::Verb;

class DecideAnswers : public testing::Test {
 protected:
  static void expect_right(const RunWorld& deployment) { EXPECT_THAT(deployment.violations, testing::IsEmpty()); }
};

TEST_F(DecideAnswers, GateWaitsForApprovalRejectionOrTimeout) {
  const char* gated = R"({name: g, jobs: {
    a: {script: x, type: python, prerequisites: ["approval:legal"], timeout: 1m},
    b: {script: x, type: python, prerequisites: ["approval:money"]}, last: {needs: [a, b], log: "done"}}})";
  RunWorld deployment(gated);
  deployment.start();
  EXPECT_EQ(deployment.describe_node("a"), "pending gate");
  ASSERT_TRUE(deployment.control(Verb::approve, "legal"));
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  const auto wrong_name = deployment.control(Verb::approve, "b");
  ASSERT_FALSE(wrong_name);
  EXPECT_THAT(wrong_name.error().message, HasSubstr("name that, money"));
  EXPECT_EQ(deployment.control(Verb::approve, "nobody").error().code, Code::not_found);
  EXPECT_EQ(deployment.control(Verb::approve, "legal").error().code, Code::conflict);
  ASSERT_TRUE(deployment.control(Verb::reject, "money"));
  EXPECT_EQ(deployment.describe_node("b"), "failed rejected");
  EXPECT_EQ(deployment.job("b").queued, 0);
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  expect_right(deployment);
}

TEST_F(DecideAnswers, ApproverNeedsNoOtherPermission) {
  RunWorld deployment(R"({name: o, jobs: {named: {approval: {approvers: [12]}}, open: {approval: true}}})");
  deployment.start();
  FlowControl outsider;
  outsider.verb = Verb::approve;
  outsider.can_steer = false;
  outsider.target = "open";
  outsider.actor = 12;
  EXPECT_EQ(deployment.apply(outsider).error().code, Code::denied);
  outsider.target = "named";
  outsider.actor = 7;
  EXPECT_EQ(deployment.apply(outsider).error().code, Code::denied);
  outsider.actor = 12;
  EXPECT_TRUE(deployment.apply(outsider));
  EXPECT_EQ(deployment.describe_node("named"), "completed ok");
  expect_right(deployment);
}

TEST_F(DecideAnswers, OnlyApproversAndAdminsAnswer) {
  RunWorld deployment(R"({name: o, jobs: {ok: {approval: {approvers: [12, 13], timeout: 1h}}}})");
  deployment.start();
  EXPECT_EQ(deployment.control(Verb::approve, "ok", "", 7).error().code, Code::denied);
  EXPECT_EQ(deployment.describe_node("ok"), "dispatched approval");
  FlowControl admin;
  admin.verb = Verb::reject;
  admin.target = "ok";
  admin.actor = 7;
  admin.admin = true;
  admin.comment = "not today";
  ASSERT_TRUE(deployment.apply(admin));
  EXPECT_EQ(deployment.describe_node("ok"), "failed rejected");
  EXPECT_THAT(deployment.node("ok").error, HasSubstr("not today"));
  expect_right(deployment);
}

TEST_F(DecideAnswers, UnansweredApprovalOrPauseTimesOut) {
  RunWorld deployment(
      R"({name: t, jobs: {ok: {approval: {timeout: 1h}, on_error: continue}, hold: {pause: "look", timeout: 2h}}})");
  deployment.start();
  EXPECT_EQ(next_timer_ms(deployment.run), deployment.now + 3600000);
  deployment.advance_clock(3600000);
  EXPECT_EQ(deployment.describe_node("ok"), "completed continued");
  deployment.advance_clock(3600000);
  EXPECT_EQ(deployment.describe_node("hold"), "failed timeout");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  expect_right(deployment);
}

TEST_F(DecideAnswers, FlowOverItsTimeIsCancelledAsTimeout) {
  RunWorld deployment(
      R"({name: t, timeout: 1h, jobs: {a: {script: x, type: python}, b: {needs: [a], script: x, type: python}}})");
  deployment.start();
  deployment.advance_clock(3600000);
  EXPECT_EQ(deployment.describe_flow(), "started cancelling");
  EXPECT_TRUE(deployment.job("a").cancel_asked);
  deployment.fail_job("a");
  EXPECT_EQ(deployment.describe_flow(), "error timeout");
  ASSERT_TRUE(deployment.control(Verb::retry));
  EXPECT_EQ(next_timer_ms(deployment.run), deployment.now + 3600000) << "the time starts again";
  deployment.end_job("a");
  deployment.end_job("b");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

constexpr const char* kParent = R"({name: p, jobs: {child: {flow: {name: c, jobs: {x: {log: hi}}}},
  after: {needs: [child], script: x, type: python, when: [{key: child.x.k, equals: "1"}]}}})";

TEST_F(DecideAnswers, ChildResultIsItsNodesResult) {
  RunWorld deployment(kParent);
  deployment.start();
  const Id child = deployment.node("child").child;
  ASSERT_NE(child, 0U);
  ASSERT_TRUE(deployment.apply(ChildStarted{deployment.index("child"), child})) << "again";
  ASSERT_TRUE(deployment.apply(FlowObserved{child, FlowStatus::started, "", {}}));
  EXPECT_EQ(deployment.describe_node("child"), "dispatched flow");
  ASSERT_TRUE(deployment.apply(FlowObserved{child, FlowStatus::finished, "", {{"x.k", "1"}}}));
  EXPECT_EQ(deployment.describe_node("child"), "completed ok");
  EXPECT_EQ(deployment.describe_node("after"), "dispatched queued");
  EXPECT_EQ(deployment.count("child_started"), 1);
  expect_right(deployment);
}

TEST_F(DecideAnswers, CancelledParentCancelsAndAwaitsItsChild) {
  RunWorld deployment(kParent);
  deployment.start_children = false;
  deployment.start();
  ASSERT_TRUE(deployment.control(Verb::cancel));
  EXPECT_EQ(deployment.describe_flow(), "started cancelling") << "another coordinator may be starting the child";
  ASSERT_EQ(pending_child_actions(deployment.plan, deployment.run).size(), 1U);
  EXPECT_EQ(pending_child_actions(deployment.plan, deployment.run)[0].kind, Effect::Kind::start_child);
  deployment.children[55] = {};
  ASSERT_TRUE(deployment.apply(ChildStarted{deployment.index("child"), 55}));
  EXPECT_TRUE(deployment.children[55].cancel_asked);
  ASSERT_EQ(pending_child_actions(deployment.plan, deployment.run).size(), 1U);
  EXPECT_EQ(pending_child_actions(deployment.plan, deployment.run)[0].kind, Effect::Kind::cancel_child);
  ASSERT_TRUE(deployment.apply(FlowObserved{55, FlowStatus::error, "cancelled", {}}));
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  expect_right(deployment);
}

TEST_F(DecideAnswers, LateChildIsCancelled) {
  RunWorld deployment(kParent);
  deployment.start();
  ASSERT_TRUE(deployment.apply(FlowObserved{deployment.node("child").child, FlowStatus::error, "no", {}}));
  deployment.children[77] = {};
  ASSERT_TRUE(deployment.apply(ChildStarted{deployment.index("child"), 77}));
  EXPECT_TRUE(deployment.children[77].cancel_asked);
}

TEST_F(DecideAnswers, GateOfAnotherFlowOpensWhenItFinishes) {
  RunWorld deployment(R"({name: g, jobs: {a: {script: x, type: python, prerequisites: ["flow:12"]},
    b: {script: x, type: python, prerequisites: ["flow:13"], on_error: continue}}})");
  deployment.start();
  EXPECT_THAT(deployment.awaited, testing::UnorderedElementsAre(std::pair{12U, 0U}, std::pair{13U, 1U}));
  EXPECT_EQ(pending_child_actions(deployment.plan, deployment.run).size(), 2U)
      << "the actions are repeated after a crash";
  ASSERT_TRUE(deployment.apply(FlowObserved{12, FlowStatus::finished, "", {}}));
  ASSERT_TRUE(deployment.apply(FlowObserved{13, FlowStatus::error, "is not there", {}}));
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("b"), "completed continued");
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  expect_right(deployment);
}

TEST_F(DecideAnswers, TooLargeResultsFailTheFlowAndNameTheLargest) {
  RunWorld deployment(R"({name: r, jobs: {a: {script: x, type: python}, b: {script: x, type: python}}})");
  deployment.start();
  ASSERT_TRUE(deployment.apply(JobObserved{0, true, "finished", "ok", "", {}, 400000}));
  ASSERT_TRUE(deployment.apply(JobObserved{1, true, "finished", "ok", "", {}, 700000}));
  EXPECT_EQ(deployment.describe_flow(), "error result_too_large");
  EXPECT_THAT(deployment.run.error, HasSubstr("node b, 700000 bytes"));
  expect_right(deployment);
}

TEST_F(DecideAnswers, FlowThatNeverStartedCanBeCancelled) {
  RunWorld deployment(kDiamond);
  EXPECT_EQ(deployment.control(Verb::pause).error().code, Code::conflict);
  ASSERT_TRUE(deployment.control(Verb::cancel));
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  deployment.start();
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  expect_right(deployment);
}

TEST_F(DecideAnswers, PausedFlowRunsCompensationsAfterResume) {
  RunWorld deployment(kSaga);
  deployment.start();
  deployment.end_job("a");
  ASSERT_TRUE(deployment.control(Verb::pause));
  deployment.fail_job("b");
  EXPECT_EQ(deployment.describe_flow(), "started stopping");
  EXPECT_EQ(deployment.describe_node("undo_a"), "pending on_call");
  ASSERT_TRUE(deployment.control(Verb::resume));
  EXPECT_EQ(deployment.describe_node("undo_a"), "dispatched queued");
  expect_right(deployment);
}

TEST_F(DecideAnswers, ControlsOverTheirLimitsAreRejectedByField) {
  RunWorld deployment(kDiamond);
  deployment.start();
  FlowControl control;
  control.verb = Verb::pause;
  control.comment = std::string(5000, 'x');
  EXPECT_THAT(deployment.apply(control).error().message, HasSubstr("comment: 5000 bytes; at most 4096"));
  control.comment = "\xff";
  EXPECT_EQ(deployment.apply(control).error().code, Code::invalid);
  control.comment.clear();
  control.payload = "{}";
  EXPECT_EQ(deployment.apply(control).error().code, Code::invalid);
  control.payload.clear();
  control.target = "a";
  EXPECT_THAT(deployment.apply(control).error().message, HasSubstr("omit the target"));
}

TEST_F(DecideAnswers, CommitIsBoundedAndTheRestFollows) {
  std::string yaml = "name: wide\njobs:\n";
  for (int i = 0; i < 100; ++i) yaml += "  n" + std::to_string(i) + ": {script: x, type: python}\n";
  RunWorld deployment(yaml);
  deployment.limits.max_facts = 30;
  ASSERT_TRUE(deployment.apply(StartRun{"manual", 0}, false));
  EXPECT_EQ(deployment.journal.size(), 30U);
  EXPECT_TRUE(has_immediate_action(deployment.plan, deployment.run));
  ASSERT_TRUE(deployment.apply(TimePassed{}));
  EXPECT_EQ(deployment.run.in_flight.size(), 100U);
  EXPECT_FALSE(has_immediate_action(deployment.plan, deployment.run));
  expect_right(deployment);
}

}  // namespace
}  // namespace mycojobs
