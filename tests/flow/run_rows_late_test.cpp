// Rows of the fault table that are decided here, from F43 on: ends, answers and times that meet a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/run_world.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Verb = FlowControl::Verb;

constexpr const char* kTwoRoots = R"(
name: roots
jobs:
  a: {script: x, type: python}
  b: {script: x, type: python}
  join: {needs: [a, b], script: x, type: python}
)";
constexpr const char* kManual = R"(
name: manual
jobs:
  a: {script: x, type: python}
  ok: {needs: [a], approval: {approvers: [7], comment: "ship?"}}
  hold: {needs: [ok], pause: "look"}
  b: {needs: [hold], script: x, type: python}
)";
constexpr const char* kRouted = R"(
name: routed
jobs:
  a: {script: x, type: python, on_error: mend}
  mend: {script: x, type: python}
  after: {needs: [a, mend], script: x, type: python}
)";

// F43
TEST(RunRowsLate, ACrashAfterAnAttemptCompletedAppliesItOnce) {
  RunWorld world(kTwoRoots);
  world.start();
  world.jobs[0].where = RunWorld::Where::ended;
  world.jobs[0].status = "finished";
  world.crash();
  world.see(0);
  world.see(0);
  EXPECT_EQ(world.count("node_completed", "a"), 1);
}

// F44
TEST(RunRowsLate, ACrashAfterAnAttemptFailedStopsTheFlowOnce) {
  RunWorld world(kTwoRoots);
  world.start();
  world.jobs[0].where = RunWorld::Where::ended;
  world.jobs[0].status = "error";
  world.jobs[0].detail = "signal";
  world.crash();
  world.see(0);
  world.crash();
  world.see(0);
  EXPECT_EQ(world.count("node_failed", "a"), 1);
  EXPECT_EQ(world.count("stopping"), 1);
}

// F45
TEST(RunRowsLate, AnErrorRouteIsTakenOnceHoweverOftenRecoveryLooks) {
  RunWorld world(kRouted);
  world.start();
  world.fail_job("a");
  for (int i = 0; i < 3; ++i) {
    world.crash();
    world.see(world.index("a"));
  }
  EXPECT_EQ(world.job("mend").queued, 1);
  world.end_job("mend");
  EXPECT_EQ(world.place("a"), "completed handled");
  world.end_job("after");
  EXPECT_EQ(world.flow(), "finished ok");
  EXPECT_THAT(world.wrong, IsEmpty());
}

// F45
TEST(RunRowsLate, ARetryIsQueuedOnceHoweverOftenItIsAskedFor) {
  RunWorld world(kTwoRoots);
  world.start();
  world.fail_job("a");
  world.end_job("b");
  ASSERT_EQ(world.flow(), "error failed");
  ASSERT_TRUE(world.control(Verb::retry, "a", "again"));
  ASSERT_TRUE(world.control(Verb::retry, "a", "again"));
  EXPECT_FALSE(world.control(Verb::retry, "a")) << "it runs";
  world.crash();
  world.see(0);
  EXPECT_EQ(world.job("a").queued, 2) << "the first attempt, and one more";
  world.end_job("a");
  world.end_job("join");
  EXPECT_EQ(world.flow(), "finished ok");
  EXPECT_THAT(world.wrong, IsEmpty());
}

// F46
TEST(RunRowsLate, AJoinIsPlannedOnceUnderConcurrentRoots) {
  RunWorld world(kTwoRoots);
  world.start();
  for (std::uint32_t i = 0; i < 2; ++i) {
    world.jobs[i].where = RunWorld::Where::ended;
    world.jobs[i].status = "finished";
  }
  for (int i = 0; i < 3; ++i) {
    world.see(0);
    world.see(1);
  }
  EXPECT_EQ(world.count("node_dispatched", "join"), 1);
  EXPECT_EQ(world.job("join").queued, 1);
}

// F47
TEST(RunRowsLate, ACompletionAfterCancelIsRecordedAndBeginsNothing) {
  RunWorld world(kTwoRoots);
  world.start();
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_TRUE(world.job("a").cancel_wished);
  world.end_job("a");
  EXPECT_EQ(world.flow(), "started cancelling");
  world.end_job("b");
  EXPECT_EQ(world.flow(), "error cancelled");
  EXPECT_EQ(world.place("join"), "cancelled cancelled");
  EXPECT_EQ(world.job("join").queued, 0);
}

// F50
TEST(RunRowsLate, TheEndIsTheLastFactWhateverIsWrittenBeside) {
  RunWorld world(kTwoRoots);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::pause, "", "k"));
  world.end_job("b");
  ASSERT_TRUE(world.control(Verb::resume));
  world.end_job("join");
  ASSERT_EQ(world.journal.back().kind, "ended");
  const std::uint64_t before = world.run.revision;
  ASSERT_TRUE(world.control(Verb::pause, "", "k")) << "known: nothing happens again";
  ASSERT_TRUE(world.apply(TimePassed{}));
  EXPECT_EQ(world.run.revision, before);
}

// F52
TEST(RunRowsLate, AnApprovalThatWaitsIsKnownAfterACrash) {
  RunWorld world(kManual);
  world.start();
  world.end_job("a");
  world.crash();
  EXPECT_EQ(world.place("ok"), "dispatched approval");
  const auto other = world.control(Verb::approve, "ok", "", 8);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::denied);
  ASSERT_TRUE(world.control(Verb::approve, "ok", "", 7));
  world.crash_to_checkpoint(checkpoint(world.plan, world.run));
  EXPECT_EQ(world.place("hold"), "dispatched pause");
  EXPECT_THAT(world.wrong, IsEmpty());
}

// F53
TEST(RunRowsLate, AnAnswerThatWasCommittedBeginsItsSuccessorAfterACrash) {
  RunWorld world(kManual);
  world.start();
  world.end_job("a");
  world.limits.max_facts = 1;
  FlowControl approve;
  approve.verb = Verb::approve;
  approve.target = "ok";
  approve.actor = 7;
  ASSERT_TRUE(world.apply(approve, false));
  EXPECT_EQ(world.place("ok"), "completed ok");
  EXPECT_EQ(world.place("hold"), "pending dependencies");
  world.crash();
  ASSERT_TRUE(world.apply(TimePassed{}));
  EXPECT_EQ(world.place("hold"), "dispatched pause");
}

// F55
TEST(RunRowsLate, AWaitKeepsItsEndOverACrash) {
  RunWorld world(
      R"({name: w, jobs: {first: {wait: 30s}, second: {needs: [first], wait: 10s}, side: {script: x, type: python}}})");
  world.start();
  EXPECT_EQ(next_timer_ms(world.run), world.now + 30000);
  world.pass(20000);
  world.crash();
  EXPECT_EQ(next_timer_ms(world.run), world.now + 10000) << "not 30 s from the crash";
  world.pass(9999);
  EXPECT_EQ(world.place("first"), "dispatched wait");
  world.pass(1);
  EXPECT_EQ(world.place("first"), "completed ok");
  EXPECT_EQ(world.place("second"), "dispatched wait");
  world.crash();
  world.pass(10000);
  EXPECT_EQ(world.place("second"), "completed ok");
}

// F56
TEST(RunRowsLate, ASignalWithAKeyCountsOnceAndTheKeyIsNotForAnother) {
  RunWorld world(
      R"({name: s, jobs: {a: {script: x, type: python, prerequisites: ["signal:go"]}, b: {needs: [a], script: x, type: python, prerequisites: ["signal:go"]}}})");
  world.start();
  EXPECT_EQ(world.place("a"), "pending gate");
  ASSERT_TRUE(world.control(Verb::signal, "go", "k1"));
  const std::uint64_t before = world.run.revision;
  ASSERT_TRUE(world.control(Verb::signal, "go", "k1"));
  EXPECT_EQ(world.run.revision, before);
  FlowControl other;
  other.verb = Verb::signal;
  other.target = "go";
  other.actor = 7;
  other.key = "k1";
  other.payload = R"({"n":1})";
  const auto refused = world.apply(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  EXPECT_THAT(refused.error().message, HasSubstr("key"));
  other.key.clear();
  EXPECT_TRUE(world.apply(other)) << "without a key it counts each time";
  EXPECT_GT(world.run.revision, before);
  world.end_job("a");
  EXPECT_EQ(world.place("b"), "dispatched queued") << "the signal has come";
}

// X11
TEST(RunRowsLate, ASlowSiblingDoesNotDelayAReadyDescendant) {
  RunWorld world(
      R"({name: x, jobs: {slow: {script: x, type: python}, quick: {script: x, type: python}, after: {needs: [quick], script: x, type: python}}})");
  world.start();
  world.end_job("quick");
  EXPECT_EQ(world.place("after"), "dispatched queued");
  EXPECT_EQ(world.place("slow"), "dispatched queued");
}

}  // namespace
}  // namespace mycojobs
