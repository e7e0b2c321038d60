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

std::uint64_t revision_after(RunWorld& deployment, const JobObserved& seen) {
  EXPECT_TRUE(deployment.apply(seen));
  return deployment.run.revision;
}

// Planning and queueing happen in one commit: a crash before the commit changes nothing, and a crash after it loses
// nothing.
TEST(RunRows, CrashBetweenPlanAndScheduleLosesNothing) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  const std::uint64_t before = deployment.run.revision;
  (void)decide(deployment.plan, deployment.run,
               {deployment.now, JobObserved{0, true, "finished", "ok", "", {}, 0}});  // never committed
  deployment.crash();
  EXPECT_EQ(deployment.run.revision, before);
  deployment.end_job("a");
  deployment.crash();
  deployment.end_job("b");
  deployment.crash();
  EXPECT_EQ(deployment.describe_node("join"), "dispatched queued");
  EXPECT_EQ(deployment.job("join").queued, 1);
  EXPECT_THAT(deployment.violations, IsEmpty());
}

TEST(RunRows, AppliedNodeIsNotScheduledAgain) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.end_job("a");
  deployment.crash();
  ASSERT_TRUE(deployment.apply(StartRun{"manual", 0}));
  for (std::uint32_t i = 0; i < 3; ++i) deployment.observe_job(i);
  EXPECT_EQ(deployment.count("node_dispatched", "a"), 1);
  EXPECT_EQ(deployment.job("a").queued, 1);
}

TEST(RunRows, SecondResultOfANodeChangesNothing) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.end_job("a");
  const std::uint64_t before = deployment.run.revision;
  EXPECT_EQ(revision_after(deployment, {0, true, "finished", "ok", "", {{"k", "other"}}, 5}), before);
  EXPECT_EQ(revision_after(deployment, {0, true, "error", "exit", "late", {}, 0}), before);
  EXPECT_EQ(deployment.describe_node("a"), "completed ok");
}

// Facts decided on a stale state do not fit the journal and are reported as anomalies.
TEST(RunRows, FactsOfAStaleStateAreRejected) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  const RunState stale = deployment.run;
  deployment.end_job("a");
  const auto late = decide(deployment.plan, stale, {deployment.now, JobObserved{0, true, "error", "exit", "", {}, 0}});
  ASSERT_TRUE(late);
  ASSERT_FALSE(late->facts.empty());
  EXPECT_EQ(late->facts.front().revision, stale.revision + 1)
      << "the journal already has this revision, so the commit is rejected";
  RunState folded = deployment.run;
  for (const RunFact& fact : late->facts) fold(deployment.plan, folded, fact);
  EXPECT_EQ(folded.nodes[0].status, NodeStatus::completed);
  EXPECT_FALSE(folded.anomalies.empty());
}

TEST(RunRows, ResultOfAPendingOrForeignNodeIsNotApplied) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  const std::uint64_t before = deployment.run.revision;
  EXPECT_EQ(revision_after(deployment, {2, true, "finished", "ok", "", {}, 0}), before) << "the node has not started";
  EXPECT_EQ(revision_after(deployment, {77, true, "finished", "ok", "", {}, 0}), before) << "the node does not exist";
  EXPECT_EQ(revision_after(deployment, {0, false, "", "", "", {}, 0}), before) << "the child has not ended";
  ASSERT_TRUE(deployment.apply(ChildStarted{0, 5}));
  ASSERT_TRUE(deployment.apply(FlowObserved{5, FlowStatus::finished, "", {}}));
  EXPECT_EQ(deployment.run.revision, before) << "node 0 is a job and starts no child flow";
}

TEST(RunRows, NothingIsAppliedAfterTheEnd) {
  RunWorld deployment(kManual);
  deployment.start();
  deployment.fail_job("a");
  ASSERT_EQ(deployment.describe_flow(), "error failed");
  const std::uint64_t before = deployment.run.revision;
  EXPECT_EQ(revision_after(deployment, {0, true, "finished", "ok", "", {}, 0}), before);
  for (const Verb verb : {Verb::pause, Verb::resume, Verb::approve, Verb::reject, Verb::signal, Verb::cancel}) {
    const auto done = deployment.control(verb, "ok");
    ASSERT_FALSE(done) << to_string(verb);
    EXPECT_EQ(done.error().code, Code::conflict) << to_string(verb);
    EXPECT_THAT(done.error().message, HasSubstr("has ended"));
  }
  EXPECT_EQ(deployment.run.revision, before);
}

TEST(RunRows, MalformedFactIsAnAnomalyAndTheRestIsRead) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  const std::vector<RunFact> malformed{{0, 1, "no_such_kind", {}, ""},
                                       {0, 1, "node_completed", {}, ""},
                                       {0, 1, "node_completed", 99, ""},
                                       {0, 1, "node_completed", 0, "{broken"},
                                       {0, 1, "node_completed", 0, "[1]"},
                                       {0, 1, "node_completed", 0, R"({"detail":"?"})"},
                                       {0, 1, "node_dispatched", 2, "{}"},
                                       {0, 1, "ended", {}, R"({"status":"finished"})"},
                                       {0, 1, "paused", 1, ""}};
  const RunState before = deployment.run;
  for (RunFact fact : malformed) {
    fact.revision = deployment.run.revision + 1;
    const std::size_t anomalies = deployment.run.anomalies.size();
    fold(deployment.plan, deployment.run, fact);
    EXPECT_EQ(deployment.run.anomalies.size(), anomalies + 1) << fact.kind << fact.data_json;
    EXPECT_EQ(deployment.run.revision, fact.revision);
  }
  deployment.end_job("a");
  deployment.end_job("b");
  deployment.end_job("join");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_EQ(deployment.run.nodes.size(), before.nodes.size());
}

TEST(RunRows, FirstOfTwoAnswersHolds) {
  RunWorld deployment(kManual);
  deployment.start();
  deployment.end_job("a");
  ASSERT_TRUE(deployment.control(Verb::approve, "ok"));
  const auto late = deployment.control(Verb::reject, "ok");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::conflict);
  EXPECT_EQ(deployment.describe_node("ok"), "completed ok");
  // If a journal contains both answers, the second is reported.
  RunFact rejected{deployment.run.revision + 1, 1, "node_failed", deployment.index("ok"), R"({"detail":"rejected"})"};
  fold(deployment.plan, deployment.run, rejected);
  EXPECT_EQ(deployment.describe_node("ok"), "completed ok");
  EXPECT_THAT(deployment.run.anomalies, ElementsAre(HasSubstr("of node ok, which is completed")));
}

TEST(RunRows, CommittedStartContinuesAfterACrash) {
  RunWorld deployment(kTwoRoots);
  deployment.limits.max_facts = 1;  // the first commit contains only `started`
  ASSERT_TRUE(deployment.apply(StartRun{"manual", 0}, false));
  EXPECT_EQ(deployment.describe_node("a"), "pending dependencies");
  deployment.crash();
  EXPECT_TRUE(has_immediate_action(deployment.plan, deployment.run));
  ASSERT_TRUE(deployment.apply(TimePassed{}));
  EXPECT_EQ(deployment.describe_node("a"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("b"), "dispatched queued");
}

// A second start changes nothing, also while a completed result waits to be applied.
TEST(RunRows, SecondStartChangesNothing) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.jobs[0].phase = RunWorld::JobPhase::ended;  // ended but not applied
  deployment.jobs[0].status = "finished";
  const std::uint64_t before = deployment.run.revision;
  ASSERT_TRUE(deployment.apply(StartRun{"schedule:nightly", 3}));
  EXPECT_EQ(deployment.run.revision, before);
  deployment.observe_job(0);
  EXPECT_EQ(deployment.describe_node("a"), "completed ok");
  EXPECT_EQ(deployment.count("started"), 1);
  EXPECT_EQ(deployment.count("node_dispatched", "a"), 1);
}

TEST(RunRows, CompletedAttemptIsAppliedOnceAfterACrash) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.jobs[0].phase = RunWorld::JobPhase::ended;
  deployment.jobs[0].status = "finished";
  deployment.crash();
  deployment.observe_job(0);
  deployment.observe_job(0);
  EXPECT_EQ(deployment.count("node_completed", "a"), 1);
}

TEST(RunRows, FailedAttemptStopsTheFlowOnceAfterACrash) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.jobs[0].phase = RunWorld::JobPhase::ended;
  deployment.jobs[0].status = "error";
  deployment.jobs[0].detail = "signal";
  deployment.crash();
  deployment.observe_job(0);
  deployment.crash();
  deployment.observe_job(0);
  EXPECT_EQ(deployment.count("node_failed", "a"), 1);
  EXPECT_EQ(deployment.count("stopping"), 1);
}

TEST(RunRows, ErrorRouteIsTakenOnceDespiteRepeatedRecovery) {
  RunWorld deployment(kRouted);
  deployment.start();
  deployment.fail_job("a");
  for (int i = 0; i < 3; ++i) {
    deployment.crash();
    deployment.observe_job(deployment.index("a"));
  }
  EXPECT_EQ(deployment.job("mend").queued, 1);
  deployment.end_job("mend");
  EXPECT_EQ(deployment.describe_node("a"), "completed handled");
  deployment.end_job("after");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_THAT(deployment.violations, IsEmpty());
}

TEST(RunRows, RepeatedRetryIsQueuedOnce) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.fail_job("a");
  deployment.end_job("b");
  ASSERT_EQ(deployment.describe_flow(), "error failed");
  ASSERT_TRUE(deployment.control(Verb::retry, "a", "again"));
  ASSERT_TRUE(deployment.control(Verb::retry, "a", "again"));
  EXPECT_FALSE(deployment.control(Verb::retry, "a")) << "the node is running";
  deployment.crash();
  deployment.observe_job(0);
  EXPECT_EQ(deployment.job("a").queued, 2) << "the first attempt and one retry";
  deployment.end_job("a");
  deployment.end_job("join");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_THAT(deployment.violations, IsEmpty());
}

TEST(RunRows, JoinIsPlannedOnceUnderConcurrentRoots) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  for (std::uint32_t i = 0; i < 2; ++i) {
    deployment.jobs[i].phase = RunWorld::JobPhase::ended;
    deployment.jobs[i].status = "finished";
  }
  for (int i = 0; i < 3; ++i) {
    deployment.observe_job(0);
    deployment.observe_job(1);
  }
  EXPECT_EQ(deployment.count("node_dispatched", "join"), 1);
  EXPECT_EQ(deployment.job("join").queued, 1);
}

TEST(RunRows, CompletionAfterCancelIsRecordedAndStartsNothing) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  ASSERT_TRUE(deployment.control(Verb::cancel));
  EXPECT_TRUE(deployment.job("a").cancel_asked);
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_flow(), "started cancelling");
  deployment.end_job("b");
  EXPECT_EQ(deployment.describe_flow(), "error cancelled");
  EXPECT_EQ(deployment.describe_node("join"), "cancelled cancelled");
  EXPECT_EQ(deployment.job("join").queued, 0);
}

TEST(RunRows, EndIsAlwaysTheLastFact) {
  RunWorld deployment(kTwoRoots);
  deployment.start();
  deployment.end_job("a");
  ASSERT_TRUE(deployment.control(Verb::pause, "", "k"));
  deployment.end_job("b");
  ASSERT_TRUE(deployment.control(Verb::resume));
  deployment.end_job("join");
  ASSERT_EQ(deployment.journal.back().kind, "ended");
  const std::uint64_t before = deployment.run.revision;
  ASSERT_TRUE(deployment.control(Verb::pause, "", "k")) << "the key is known, so the command has no effect";
  ASSERT_TRUE(deployment.apply(TimePassed{}));
  EXPECT_EQ(deployment.run.revision, before);
}

TEST(RunRows, PendingApprovalIsKnownAfterACrash) {
  RunWorld deployment(kManual);
  deployment.start();
  deployment.end_job("a");
  deployment.crash();
  EXPECT_EQ(deployment.describe_node("ok"), "dispatched approval");
  const auto other = deployment.control(Verb::approve, "ok", "", 8);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::denied);
  ASSERT_TRUE(deployment.control(Verb::approve, "ok", "", 7));
  deployment.crash_to_checkpoint(checkpoint(deployment.plan, deployment.run));
  EXPECT_EQ(deployment.describe_node("hold"), "dispatched pause");
  EXPECT_THAT(deployment.violations, IsEmpty());
}

TEST(RunRows, CommittedAnswerStartsItsSuccessorAfterACrash) {
  RunWorld deployment(kManual);
  deployment.start();
  deployment.end_job("a");
  deployment.limits.max_facts = 1;
  FlowControl approve;
  approve.verb = Verb::approve;
  approve.target = "ok";
  approve.actor = 7;
  ASSERT_TRUE(deployment.apply(approve, false));
  EXPECT_EQ(deployment.describe_node("ok"), "completed ok");
  EXPECT_EQ(deployment.describe_node("hold"), "pending dependencies");
  deployment.crash();
  ASSERT_TRUE(deployment.apply(TimePassed{}));
  EXPECT_EQ(deployment.describe_node("hold"), "dispatched pause");
}

TEST(RunRows, WaitKeepsItsDeadlineOverACrash) {
  RunWorld deployment(
      R"({name: w, jobs: {first: {wait: 30s}, second: {needs: [first], wait: 10s}, side: {script: x, type: python}}})");
  deployment.start();
  EXPECT_EQ(next_timer_ms(deployment.run), deployment.now + 30000);
  deployment.advance_clock(20000);
  deployment.crash();
  EXPECT_EQ(next_timer_ms(deployment.run), deployment.now + 10000) << "the time-out does not start at the crash";
  deployment.advance_clock(9999);
  EXPECT_EQ(deployment.describe_node("first"), "dispatched wait");
  deployment.advance_clock(1);
  EXPECT_EQ(deployment.describe_node("first"), "completed ok");
  EXPECT_EQ(deployment.describe_node("second"), "dispatched wait");
  deployment.crash();
  deployment.advance_clock(10000);
  EXPECT_EQ(deployment.describe_node("second"), "completed ok");
}

TEST(RunRows, SignalWithAKeyCountsOnceAndIsNotShared) {
  RunWorld deployment(
      R"({name: s, jobs: {a: {script: x, type: python, prerequisites: ["signal:go"]}, b: {needs: [a], script: x, type: python, prerequisites: ["signal:go"]}}})");
  deployment.start();
  EXPECT_EQ(deployment.describe_node("a"), "pending gate");
  ASSERT_TRUE(deployment.control(Verb::signal, "go", "k1"));
  const std::uint64_t before = deployment.run.revision;
  ASSERT_TRUE(deployment.control(Verb::signal, "go", "k1"));
  EXPECT_EQ(deployment.run.revision, before);
  FlowControl other;
  other.verb = Verb::signal;
  other.target = "go";
  other.actor = 7;
  other.key = "k1";
  other.payload = R"({"n":1})";
  const auto refused = deployment.apply(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  EXPECT_THAT(refused.error().message, HasSubstr("key"));
  other.key.clear();
  EXPECT_TRUE(deployment.apply(other)) << "a command without a key counts each time";
  EXPECT_GT(deployment.run.revision, before);
  deployment.end_job("a");
  EXPECT_EQ(deployment.describe_node("b"), "dispatched queued") << "the signal was received";
}

TEST(RunRows, SlowSiblingDoesNotDelayAReadyDescendant) {
  RunWorld deployment(
      R"({name: x, jobs: {slow: {script: x, type: python}, quick: {script: x, type: python}, after: {needs: [quick], script: x, type: python}}})");
  deployment.start();
  deployment.end_job("quick");
  EXPECT_EQ(deployment.describe_node("after"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("slow"), "dispatched queued");
}

}  // namespace
}  // namespace mycojobs
