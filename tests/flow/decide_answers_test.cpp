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
  static void expect_right(const RunWorld& world) { EXPECT_THAT(world.wrong, testing::IsEmpty()); }
};

TEST_F(DecideAnswers, GateWaitsForApprovalRejectionOrTimeout) {
  const char* gated = R"({name: g, jobs: {
    a: {script: x, type: python, prerequisites: ["approval:legal"], timeout: 1m},
    b: {script: x, type: python, prerequisites: ["approval:money"]}, last: {needs: [a, b], log: "done"}}})";
  RunWorld world(gated);
  world.start();
  EXPECT_EQ(world.place("a"), "pending gate");
  ASSERT_TRUE(world.control(Verb::approve, "legal"));
  EXPECT_EQ(world.place("a"), "dispatched queued");
  const auto wrong_name = world.control(Verb::approve, "b");
  ASSERT_FALSE(wrong_name);
  EXPECT_THAT(wrong_name.error().message, HasSubstr("name that, money"));
  EXPECT_EQ(world.control(Verb::approve, "nobody").error().code, Code::not_found);
  EXPECT_EQ(world.control(Verb::approve, "legal").error().code, Code::conflict);
  ASSERT_TRUE(world.control(Verb::reject, "money"));
  EXPECT_EQ(world.place("b"), "failed rejected");
  EXPECT_EQ(world.job("b").queued, 0);
  world.end_job("a");
  EXPECT_EQ(world.flow(), "error failed");
  expect_right(world);
}

TEST_F(DecideAnswers, ApproverNeedsNoOtherPermission) {
  RunWorld world(R"({name: o, jobs: {named: {approval: {approvers: [12]}}, open: {approval: true}}})");
  world.start();
  FlowControl outsider;
  outsider.verb = Verb::approve;
  outsider.steers = false;
  outsider.target = "open";
  outsider.actor = 12;
  EXPECT_EQ(world.apply(outsider).error().code, Code::denied);
  outsider.target = "named";
  outsider.actor = 7;
  EXPECT_EQ(world.apply(outsider).error().code, Code::denied);
  outsider.actor = 12;
  EXPECT_TRUE(world.apply(outsider));
  EXPECT_EQ(world.place("named"), "completed ok");
  expect_right(world);
}

TEST_F(DecideAnswers, OnlyApproversAndAdminsAnswer) {
  RunWorld world(R"({name: o, jobs: {ok: {approval: {approvers: [12, 13], timeout: 1h}}}})");
  world.start();
  EXPECT_EQ(world.control(Verb::approve, "ok", "", 7).error().code, Code::denied);
  EXPECT_EQ(world.place("ok"), "dispatched approval");
  FlowControl admin;
  admin.verb = Verb::reject;
  admin.target = "ok";
  admin.actor = 7;
  admin.admin = true;
  admin.comment = "not today";
  ASSERT_TRUE(world.apply(admin));
  EXPECT_EQ(world.place("ok"), "failed rejected");
  EXPECT_THAT(world.node("ok").error, HasSubstr("not today"));
  expect_right(world);
}

TEST_F(DecideAnswers, UnansweredApprovalOrPauseTimesOut) {
  RunWorld world(
      R"({name: t, jobs: {ok: {approval: {timeout: 1h}, on_error: continue}, hold: {pause: "look", timeout: 2h}}})");
  world.start();
  EXPECT_EQ(next_timer_ms(world.run), world.now + 3600000);
  world.pass(3600000);
  EXPECT_EQ(world.place("ok"), "completed continued");
  world.pass(3600000);
  EXPECT_EQ(world.place("hold"), "failed timeout");
  EXPECT_EQ(world.flow(), "error failed");
  expect_right(world);
}

TEST_F(DecideAnswers, FlowOverItsTimeIsCancelledAsTimeout) {
  RunWorld world(
      R"({name: t, timeout: 1h, jobs: {a: {script: x, type: python}, b: {needs: [a], script: x, type: python}}})");
  world.start();
  world.pass(3600000);
  EXPECT_EQ(world.flow(), "started cancelling");
  EXPECT_TRUE(world.job("a").cancel_asked);
  world.fail_job("a");
  EXPECT_EQ(world.flow(), "error timeout");
  ASSERT_TRUE(world.control(Verb::retry));
  EXPECT_EQ(next_timer_ms(world.run), world.now + 3600000) << "from the start again";
  world.end_job("a");
  world.end_job("b");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

constexpr const char* kParent = R"({name: p, jobs: {child: {flow: {name: c, jobs: {x: {log: hi}}}},
  after: {needs: [child], script: x, type: python, when: [{key: child.x.k, equals: "1"}]}}})";

TEST_F(DecideAnswers, ChildResultIsItsNodesResult) {
  RunWorld world(kParent);
  world.start();
  const Id child = world.node("child").child;
  ASSERT_NE(child, 0U);
  ASSERT_TRUE(world.apply(ChildStarted{world.index("child"), child})) << "again";
  ASSERT_TRUE(world.apply(FlowSeen{child, FlowStatus::started, "", {}}));
  EXPECT_EQ(world.place("child"), "dispatched flow");
  ASSERT_TRUE(world.apply(FlowSeen{child, FlowStatus::finished, "", {{"x.k", "1"}}}));
  EXPECT_EQ(world.place("child"), "completed ok");
  EXPECT_EQ(world.place("after"), "dispatched queued");
  EXPECT_EQ(world.count("child_started"), 1);
  expect_right(world);
}

TEST_F(DecideAnswers, CancelledParentCancelsAndAwaitsItsChild) {
  RunWorld world(kParent);
  world.start_children = false;
  world.start();
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_EQ(world.flow(), "started cancelling") << "somebody may be about to start it";
  ASSERT_EQ(owed(world.plan, world.run).size(), 1U);
  EXPECT_EQ(owed(world.plan, world.run)[0].kind, Effect::Kind::start_child);
  world.children[55] = {};
  ASSERT_TRUE(world.apply(ChildStarted{world.index("child"), 55}));
  EXPECT_TRUE(world.children[55].cancel_asked);
  ASSERT_EQ(owed(world.plan, world.run).size(), 1U);
  EXPECT_EQ(owed(world.plan, world.run)[0].kind, Effect::Kind::cancel_child);
  ASSERT_TRUE(world.apply(FlowSeen{55, FlowStatus::error, "cancelled", {}}));
  EXPECT_EQ(world.flow(), "error cancelled");
  expect_right(world);
}

TEST_F(DecideAnswers, LateChildIsCancelled) {
  RunWorld world(kParent);
  world.start();
  ASSERT_TRUE(world.apply(FlowSeen{world.node("child").child, FlowStatus::error, "no", {}}));
  world.children[77] = {};
  ASSERT_TRUE(world.apply(ChildStarted{world.index("child"), 77}));
  EXPECT_TRUE(world.children[77].cancel_asked);
}

TEST_F(DecideAnswers, GateOfAnotherFlowOpensWhenItFinishes) {
  RunWorld world(R"({name: g, jobs: {a: {script: x, type: python, prerequisites: ["flow:12"]},
    b: {script: x, type: python, prerequisites: ["flow:13"], on_error: continue}}})");
  world.start();
  EXPECT_THAT(world.awaited, testing::UnorderedElementsAre(std::pair{12U, 0U}, std::pair{13U, 1U}));
  EXPECT_EQ(owed(world.plan, world.run).size(), 2U) << "asked for again after a crash";
  ASSERT_TRUE(world.apply(FlowSeen{12, FlowStatus::finished, "", {}}));
  ASSERT_TRUE(world.apply(FlowSeen{13, FlowStatus::error, "is not there", {}}));
  EXPECT_EQ(world.place("a"), "dispatched queued");
  EXPECT_EQ(world.place("b"), "completed continued");
  world.end_job("a");
  EXPECT_EQ(world.flow(), "finished ok");
  expect_right(world);
}

TEST_F(DecideAnswers, TooLargeResultsFailTheFlowAndNameTheLargest) {
  RunWorld world(R"({name: r, jobs: {a: {script: x, type: python}, b: {script: x, type: python}}})");
  world.start();
  ASSERT_TRUE(world.apply(JobSeen{0, true, "finished", "ok", "", {}, 400000}));
  ASSERT_TRUE(world.apply(JobSeen{1, true, "finished", "ok", "", {}, 700000}));
  EXPECT_EQ(world.flow(), "error result_too_large");
  EXPECT_THAT(world.run.error, HasSubstr("node b, 700000 bytes"));
  expect_right(world);
}

TEST_F(DecideAnswers, FlowThatNeverStartedCanBeCancelled) {
  RunWorld world(kDiamond);
  EXPECT_EQ(world.control(Verb::pause).error().code, Code::conflict);
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_EQ(world.flow(), "error cancelled");
  world.start();
  EXPECT_EQ(world.flow(), "error cancelled");
  expect_right(world);
}

TEST_F(DecideAnswers, PausedFlowRunsCompensationsAfterResume) {
  RunWorld world(kSaga);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::pause));
  world.fail_job("b");
  EXPECT_EQ(world.flow(), "started stopping");
  EXPECT_EQ(world.place("undo_a"), "pending on_call");
  ASSERT_TRUE(world.control(Verb::resume));
  EXPECT_EQ(world.place("undo_a"), "dispatched queued");
  expect_right(world);
}

TEST_F(DecideAnswers, ControlsOverTheirLimitsAreRejectedByField) {
  RunWorld world(kDiamond);
  world.start();
  FlowControl control;
  control.verb = Verb::pause;
  control.comment = std::string(5000, 'x');
  EXPECT_THAT(world.apply(control).error().message, HasSubstr("comment: 5000 bytes; at most 4096"));
  control.comment = "\xff";
  EXPECT_EQ(world.apply(control).error().code, Code::invalid);
  control.comment.clear();
  control.payload = "{}";
  EXPECT_EQ(world.apply(control).error().code, Code::invalid);
  control.payload.clear();
  control.target = "a";
  EXPECT_THAT(world.apply(control).error().message, HasSubstr("omit the target"));
}

TEST_F(DecideAnswers, CommitIsBoundedAndTheRestFollows) {
  std::string yaml = "name: wide\njobs:\n";
  for (int i = 0; i < 100; ++i) yaml += "  n" + std::to_string(i) + ": {script: x, type: python}\n";
  RunWorld world(yaml);
  world.limits.max_facts = 30;
  ASSERT_TRUE(world.apply(StartRun{"manual", 0}, false));
  EXPECT_EQ(world.journal.size(), 30U);
  EXPECT_TRUE(more_to_do(world.plan, world.run));
  ASSERT_TRUE(world.apply(TimePassed{}));
  EXPECT_EQ(world.run.in_flight.size(), 100U);
  EXPECT_FALSE(more_to_do(world.plan, world.run));
  expect_right(world);
}

}  // namespace
}  // namespace mycojobs
