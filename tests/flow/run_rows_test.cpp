// The rows of the fault table that concern decide(): crashes between commits, and events that are repeated, late or
// foreign. The rows that need a store are tested with the progress and store tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/run_world.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
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

std::uint64_t revision_after(RunWorld& world, const JobSeen& seen) {
  EXPECT_TRUE(world.apply(seen));
  return world.run.revision;
}

// Planning and queueing happen in one commit: a crash before the commit changes nothing, and a crash after it loses
// nothing.
TEST(RunRows, CrashBetweenPlanAndScheduleLosesNothing) {
  RunWorld world(kTwoRoots);
  world.start();
  const std::uint64_t before = world.run.revision;
  (void)decide(world.plan, world.run, {world.now, JobSeen{0, true, "finished", "ok", "", {}, 0}});  // never committed
  world.crash();
  EXPECT_EQ(world.run.revision, before);
  world.end_job("a");
  world.crash();
  world.end_job("b");
  world.crash();
  EXPECT_EQ(world.place("join"), "dispatched queued");
  EXPECT_EQ(world.job("join").queued, 1);
  EXPECT_THAT(world.wrong, IsEmpty());
}

TEST(RunRows, AppliedNodeIsNotScheduledAgain) {
  RunWorld world(kTwoRoots);
  world.start();
  world.end_job("a");
  world.crash();
  ASSERT_TRUE(world.apply(StartRun{"manual", 0}));
  for (std::uint32_t i = 0; i < 3; ++i) world.see(i);
  EXPECT_EQ(world.count("node_dispatched", "a"), 1);
  EXPECT_EQ(world.job("a").queued, 1);
}

TEST(RunRows, SecondResultOfANodeChangesNothing) {
  RunWorld world(kTwoRoots);
  world.start();
  world.end_job("a");
  const std::uint64_t before = world.run.revision;
  EXPECT_EQ(revision_after(world, {0, true, "finished", "ok", "", {{"k", "other"}}, 5}), before);
  EXPECT_EQ(revision_after(world, {0, true, "error", "exit", "late", {}, 0}), before);
  EXPECT_EQ(world.place("a"), "completed ok");
}

// Facts decided on a stale state do not fit the journal and are reported as anomalies.
TEST(RunRows, FactsOfAStaleStateAreRejected) {
  RunWorld world(kTwoRoots);
  world.start();
  const RunState stale = world.run;
  world.end_job("a");
  const auto late = decide(world.plan, stale, {world.now, JobSeen{0, true, "error", "exit", "", {}, 0}});
  ASSERT_TRUE(late);
  ASSERT_FALSE(late->facts.empty());
  EXPECT_EQ(late->facts.front().revision, stale.revision + 1) << "which the journal has already: its commit is refused";
  RunState folded = world.run;
  for (const RunFact& fact : late->facts) fold(world.plan, folded, fact);
  EXPECT_EQ(folded.nodes[0].status, NodeStatus::completed);
  EXPECT_FALSE(folded.anomalies.empty());
}

TEST(RunRows, ResultOfAPendingOrForeignNodeIsNotApplied) {
  RunWorld world(kTwoRoots);
  world.start();
  const std::uint64_t before = world.run.revision;
  EXPECT_EQ(revision_after(world, {2, true, "finished", "ok", "", {}, 0}), before) << "it has not begun";
  EXPECT_EQ(revision_after(world, {77, true, "finished", "ok", "", {}, 0}), before) << "there is no such node";
  EXPECT_EQ(revision_after(world, {0, false, "", "", "", {}, 0}), before) << "it has not ended";
  ASSERT_TRUE(world.apply(ChildStarted{0, 5}));
  ASSERT_TRUE(world.apply(FlowSeen{5, FlowStatus::finished, "", {}}));
  EXPECT_EQ(world.run.revision, before) << "no child of this flow";
}

TEST(RunRows, NothingIsAppliedAfterTheEnd) {
  RunWorld world(kManual);
  world.start();
  world.fail_job("a");
  ASSERT_EQ(world.flow(), "error failed");
  const std::uint64_t before = world.run.revision;
  EXPECT_EQ(revision_after(world, {0, true, "finished", "ok", "", {}, 0}), before);
  for (const Verb verb : {Verb::pause, Verb::resume, Verb::approve, Verb::reject, Verb::signal, Verb::cancel}) {
    const auto done = world.control(verb, "ok");
    ASSERT_FALSE(done) << word(verb);
    EXPECT_EQ(done.error().code, Code::conflict) << word(verb);
    EXPECT_THAT(done.error().message, HasSubstr("has ended"));
  }
  EXPECT_EQ(world.run.revision, before);
}

TEST(RunRows, MalformedFactIsAnAnomalyAndTheRestIsRead) {
  RunWorld world(kTwoRoots);
  world.start();
  const std::vector<RunFact> malformed{{0, 1, "no_such_kind", {}, ""},
                                       {0, 1, "node_completed", {}, ""},
                                       {0, 1, "node_completed", 99, ""},
                                       {0, 1, "node_completed", 0, "{broken"},
                                       {0, 1, "node_completed", 0, "[1]"},
                                       {0, 1, "node_completed", 0, R"({"detail":"?"})"},
                                       {0, 1, "node_dispatched", 2, "{}"},
                                       {0, 1, "ended", {}, R"({"status":"finished"})"},
                                       {0, 1, "paused", 1, ""}};
  const RunState before = world.run;
  for (RunFact fact : malformed) {
    fact.revision = world.run.revision + 1;
    const std::size_t anomalies = world.run.anomalies.size();
    fold(world.plan, world.run, fact);
    EXPECT_EQ(world.run.anomalies.size(), anomalies + 1) << fact.kind << fact.more;
    EXPECT_EQ(world.run.revision, fact.revision);
  }
  world.end_job("a");
  world.end_job("b");
  world.end_job("join");
  EXPECT_EQ(world.flow(), "finished ok");
  EXPECT_EQ(world.run.nodes.size(), before.nodes.size());
}

TEST(RunRows, FirstOfTwoAnswersHolds) {
  RunWorld world(kManual);
  world.start();
  world.end_job("a");
  ASSERT_TRUE(world.control(Verb::approve, "ok"));
  const auto late = world.control(Verb::reject, "ok");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::conflict);
  EXPECT_EQ(world.place("ok"), "completed ok");
  // If a journal contains both answers, the second is reported.
  RunFact rejected{world.run.revision + 1, 1, "node_failed", world.index("ok"), R"({"detail":"rejected"})"};
  fold(world.plan, world.run, rejected);
  EXPECT_EQ(world.place("ok"), "completed ok");
  EXPECT_THAT(world.run.anomalies, ElementsAre(HasSubstr("of node ok, which is completed")));
}

TEST(RunRows, CommittedStartContinuesAfterACrash) {
  RunWorld world(kTwoRoots);
  world.limits.max_facts = 1;  // the first commit contains only `started`
  ASSERT_TRUE(world.apply(StartRun{"manual", 0}, false));
  EXPECT_EQ(world.place("a"), "pending dependencies");
  world.crash();
  EXPECT_TRUE(more_to_do(world.plan, world.run));
  ASSERT_TRUE(world.apply(TimePassed{}));
  EXPECT_EQ(world.place("a"), "dispatched queued");
  EXPECT_EQ(world.place("b"), "dispatched queued");
}

// A second start changes nothing, also while a completed result waits to be applied.
TEST(RunRows, SecondStartChangesNothing) {
  RunWorld world(kTwoRoots);
  world.start();
  world.jobs[0].where = RunWorld::Where::ended;  // ended but not applied
  world.jobs[0].status = "finished";
  const std::uint64_t before = world.run.revision;
  ASSERT_TRUE(world.apply(StartRun{"schedule:nightly", 3}));
  EXPECT_EQ(world.run.revision, before);
  world.see(0);
  EXPECT_EQ(world.place("a"), "completed ok");
  EXPECT_EQ(world.count("started"), 1);
  EXPECT_EQ(world.count("node_dispatched", "a"), 1);
}

TEST(RunRows, CompletedAttemptIsAppliedOnceAfterACrash) {
  RunWorld world(kTwoRoots);
  world.start();
  world.jobs[0].where = RunWorld::Where::ended;
  world.jobs[0].status = "finished";
  world.crash();
  world.see(0);
  world.see(0);
  EXPECT_EQ(world.count("node_completed", "a"), 1);
}

TEST(RunRows, FailedAttemptStopsTheFlowOnceAfterACrash) {
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

TEST(RunRows, ErrorRouteIsTakenOnceDespiteRepeatedRecovery) {
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

TEST(RunRows, RepeatedRetryIsQueuedOnce) {
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

TEST(RunRows, JoinIsPlannedOnceUnderConcurrentRoots) {
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

TEST(RunRows, CompletionAfterCancelIsRecordedAndStartsNothing) {
  RunWorld world(kTwoRoots);
  world.start();
  ASSERT_TRUE(world.control(Verb::cancel));
  EXPECT_TRUE(world.job("a").cancel_asked);
  world.end_job("a");
  EXPECT_EQ(world.flow(), "started cancelling");
  world.end_job("b");
  EXPECT_EQ(world.flow(), "error cancelled");
  EXPECT_EQ(world.place("join"), "cancelled cancelled");
  EXPECT_EQ(world.job("join").queued, 0);
}

TEST(RunRows, EndIsAlwaysTheLastFact) {
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

TEST(RunRows, PendingApprovalIsKnownAfterACrash) {
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

TEST(RunRows, CommittedAnswerStartsItsSuccessorAfterACrash) {
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

TEST(RunRows, WaitKeepsItsDeadlineOverACrash) {
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

TEST(RunRows, SignalWithAKeyCountsOnceAndIsNotShared) {
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

TEST(RunRows, SlowSiblingDoesNotDelayAReadyDescendant) {
  RunWorld world(
      R"({name: x, jobs: {slow: {script: x, type: python}, quick: {script: x, type: python}, after: {needs: [quick], script: x, type: python}}})");
  world.start();
  world.end_job("quick");
  EXPECT_EQ(world.place("after"), "dispatched queued");
  EXPECT_EQ(world.place("slow"), "dispatched queued");
}

}  // namespace
}  // namespace mycojobs
