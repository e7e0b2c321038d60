// Commits of flows: they are applied completely or not at all, at the expected revision. Effects of commits on jobs.
#include <gmock/gmock.h>

#include "contract/flow_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
class FlowsCommit : public FlowContract {
 protected:
  static FlowEnd ended(const std::string& job_key, const std::string& status, const std::string& detail) {
    return {job_key, {{"status", status}, {"detail", detail}}};
  }
};

TEST_P(FlowsCommit, FactsAreReadAsTheyWereWritten) {
  const Id flow = new_flow(1);
  FlowCommit first = commit(flow, 0, 0);
  first.facts = {{0, 0, "started", std::nullopt, R"({"trigger":"manual"})"}, {0, 0, "ready", 7U, ""}};
  first.record_fields = {{"status", "started"}, {"detail", "running"}};
  EXPECT_EQ(flows_->commit(first).value(), 2U);
  const FlowReadResult run = read(flow, std::nullopt);
  EXPECT_EQ(run.revision, 2U);
  ASSERT_EQ(run.facts.size(), 2U);
  EXPECT_EQ(run.facts[0].revision, 1U);
  EXPECT_EQ(run.facts[0].kind, "started");
  EXPECT_FALSE(run.facts[0].node.has_value());
  EXPECT_EQ(run.facts[0].data_json, R"({"trigger":"manual"})");
  EXPECT_GT(run.facts[0].at_ms, 1600000000000U);
  EXPECT_EQ(run.facts[1].node, 7U);
  EXPECT_FALSE(run.has_more);
  EXPECT_THAT(run.anomalies, IsEmpty());
  EXPECT_GE(run.now_ms, run.facts[1].at_ms);
  EXPECT_EQ(field("flow:1", "status"), "started");
  EXPECT_THAT(active(), ElementsAre(flow));
  EXPECT_EQ(read(flow, 1).facts.size(), 1U);
}

TEST_P(FlowsCommit, WrongRevisionChangesNothing) {
  const Id flow = new_flow(3);
  begin(flow, {"job:12:1"});
  const FlowReadResult before = read(flow);
  FlowCommit late = commit(flow, 0);
  late.dispatches = {{"job:12:2", {}}};
  late.ends = {ended("job:12:3", "error", "skipped")};
  late.cancelled_jobs = {"job:12:1"};
  late.record_fields = {{"status", "error"}};
  late.checkpoint = "x";
  late.ended = true;
  const auto refused = flows_->commit(late);
  EXPECT_EQ(outcome(refused), "conflict");
  EXPECT_THAT(refused.error().message, HasSubstr("revision 1"));
  const FlowReadResult after = read(flow, std::nullopt);
  EXPECT_EQ(after.revision, 1U);
  EXPECT_EQ(after.checkpoint, "");
  EXPECT_EQ(after.record, before.record);
  EXPECT_EQ(state("job:12:1"), "queued");
  EXPECT_EQ(state("job:12:2"), "planned");
  EXPECT_EQ(state("job:12:3"), "planned");
  EXPECT_THAT(active(), ElementsAre(flow));
}

TEST_P(FlowsCommit, OneOfTwoConcurrentCommitsSucceeds) {
  const Id flow = new_flow(2);
  begin(flow);
  auto other = backend_->stores().open_flows().value();
  FlowCommit one = commit(flow, 1), two = commit(flow, 1);
  one.dispatches = {{"job:12:1", {}}};
  two.dispatches = {{"job:12:2", {}}};
  EXPECT_EQ(flows_->commit(one).value(), 2U);
  EXPECT_EQ(outcome(other->commit(two)), "conflict");
  EXPECT_EQ(state("job:12:2"), "planned");
  EXPECT_EQ(read(flow).facts.size(), 2U);
}

TEST_P(FlowsCommit, RepeatedCommitIsAConflictWithoutEffect) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  FlowCommit again = commit(flow, 0);
  again.dispatches = {{"job:12:1", {}}};
  EXPECT_EQ(outcome(flows_->commit(again)), "conflict");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(FlowsCommit, DispatchQueuesTheJobWithItsFields) {
  const Id flow = new_flow(2);
  FlowCommit first = commit(flow, 0);
  first.dispatches = {{"job:12:1", {{"env_vars", R"({"A":"b"})"}}}};
  ASSERT_TRUE(flows_->commit(first));
  EXPECT_EQ(field("job:12:1", "status"), "dispatched");
  EXPECT_EQ(field("job:12:1", "detail"), "queued");
  const ClaimedJob claimed = claim_one();
  EXPECT_EQ(claimed.ref.job_key, "job:12:1");
  EXPECT_EQ(claimed.attempt, 1U);
  EXPECT_EQ(field("job:12:1", "env_vars"), R"({"A":"b"})");
  EXPECT_EQ(view("job:12:1").state, "live");
  EXPECT_EQ(view("job:12:1").runner, 20U);
}

TEST_P(FlowsCommit, DependenciesOfFlowJobsAreNotEvaluatedAgain) {
  const FlowIds place = flows_->create(draft(2)).value();
  Job second = job(2);
  second.dependends = {1};
  const std::vector<Job> both{job(1), second};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, both));
  ASSERT_TRUE(flows_->put_flow(flow(place), "{}"));
  FlowCommit first = commit(place.flow, 0);
  first.ends = {ended("job:12:1", "error", "exit")};
  first.dispatches = {{"job:12:2", {}}};
  ASSERT_TRUE(flows_->commit(first));
  EXPECT_EQ(claim_one().ref.job_key, "job:12:2");
}

TEST_P(FlowsCommit, QueueSettingsApplyToItsJobs) {
  const FlowIds place = flows_->create(draft(3)).value();
  std::vector<Job> jobs{job(1), job(2), job(3)};
  jobs[1].priority = 5;
  jobs[2].run_at_ms = store_->now_ms().value() + 3600000;
  jobs[0].queue_timeout_ms = 1;
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, jobs));
  ASSERT_TRUE(flows_->put_flow(flow(place), "{}"));
  ASSERT_TRUE(eventually([&] { return store_->tick(1, {}).has_value(); }));
  EXPECT_EQ(state("job:12:1"), "planned");  // the job's time in the queue has not started
  begin(place.flow, {"job:12:1", "job:12:2", "job:12:3"});
  EXPECT_EQ(claim_one().ref.job_key, "job:12:2");
  ASSERT_TRUE(eventually([&] { return store_->tick(1, {}).has_value() && state("job:12:1") == "ended"; }));
  EXPECT_EQ(view("job:12:1").detail, "timeout");
  EXPECT_EQ(events(place.flow), "job job:12:1");
  EXPECT_THAT(claim(5), IsEmpty());
  EXPECT_EQ(state("job:12:3"), "delayed");
}

TEST_P(FlowsCommit, DispatchOfAJobThatHasEndedRaisesItsEventAgain) {
  const Id flow = new_flow(2);
  begin(flow, {"job:12:1"});
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  FlowCommit next = commit(flow, 1);
  next.applied_events = 1;
  next.dispatches = {{"job:12:1", {}}};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(events(flow), "job job:12:1");
  EXPECT_THAT(due(), ElementsAre(flow));
}

TEST_P(FlowsCommit, EndsOfFlowNodesRaiseNoEvent) {
  const Id flow = new_flow(3);
  FlowCommit first = commit(flow, 0);
  first.ends = {{"job:12:1", {{"status", "finished"}, {"detail", "ok"}, {"result", R"({"a":"1"})"}}},
                ended("job:12:2", "error", "skipped")};
  ASSERT_TRUE(flows_->commit(first));
  EXPECT_EQ(events(flow), "");
  EXPECT_THAT(due(), IsEmpty());
  const FlowJobView one = view("job:12:1");
  EXPECT_EQ(one.state, "ended");
  EXPECT_EQ(one.status, "finished");
  EXPECT_EQ(one.result, R"({"a":"1"})");
  EXPECT_GT(one.ended_ms, 0U);
  EXPECT_EQ(view("job:12:2").detail, "skipped");
  EXPECT_EQ(field("job:12:2", "status"), "error");
  FlowCommit again = commit(flow, 1);
  again.ends = {ended("job:12:1", "error", "skipped")};
  ASSERT_TRUE(flows_->commit(again));
  EXPECT_EQ(view("job:12:1").status, "finished");
}

TEST_P(FlowsCommit, EndWithoutAStatusIsRejected) {
  const Id flow = new_flow(1);
  FlowCommit wrong = commit(flow, 0);
  wrong.ends = {{"job:12:1", {{"detail", "ok"}}}};
  EXPECT_EQ(outcome(flows_->commit(wrong)), "invalid");
  wrong.ends = {};
  wrong.facts.resize(2001);
  EXPECT_EQ(outcome(flows_->commit(wrong)), "too_large");
  EXPECT_EQ(outcome(flows_->commit(commit(99, 0))), "not_found");
}

TEST_P(FlowsCommit, CancelRequestsRunningAndEndsOtherJobs) {
  const Id flow = new_flow(3);
  begin(flow, {"job:12:1", "job:12:2"});
  const ClaimedJob live = claim_one();
  FlowCommit next = commit(flow, 1);
  next.cancelled_jobs = {"job:12:1", "job:12:2", "job:12:3"};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(events(flow), "job job:12:2, job job:12:3");
  EXPECT_EQ(state("job:12:1"), "live");
  const std::vector<ClaimRef> refs{live.ref};
  EXPECT_EQ(store_->renew(1, refs, 60000).value().at(0), Renewal::cancel);
  EXPECT_EQ(view("job:12:2").detail, "cancelled");
  EXPECT_THAT(claim(5), IsEmpty());
}

TEST_P(FlowsCommit, FailedJobIsQueuedAgainAsTheNextAttempt) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  JobEnd failed;
  failed.status = JobStatus::error;
  failed.detail = "exit";
  ASSERT_EQ(outcome(end(claim_one().ref, failed)), "ok");
  FlowCommit next = commit(flow, 1);
  next.requeued_jobs = {"job:12:1"};
  ASSERT_TRUE(flows_->commit(next));
  const ClaimedJob again = claim_one();
  EXPECT_EQ(again.attempt, 2U);
  ASSERT_EQ(outcome(end(again.ref, finished())), "ok");
  FlowCommit late = commit(flow, 2);
  late.applied_events = 2;
  late.requeued_jobs = {"job:12:1"};
  read(flow);
  ASSERT_TRUE(flows_->commit(late));
  EXPECT_EQ(view("job:12:1").status, "finished");
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsCommit, FlowRunsACancelledJobAgain) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "conflict");
  FlowCommit next = commit(flow, 1);
  next.requeued_jobs = {"job:12:1"};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1");
}

TEST_P(FlowsCommit, NodeThatNeverRanIsPlannedAgain) {
  const Id flow = new_flow(2);
  FlowCommit first = commit(flow, 0);
  first.ends = {ended("job:12:1", "error", "cancelled"), ended("job:12:2", "error", "dependency_failed")};
  ASSERT_TRUE(flows_->commit(first));
  FlowCommit next = commit(flow, 1);
  next.replanned_jobs = {"job:12:1", "job:12:2"};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(state("job:12:1"), "planned");
  EXPECT_EQ(field("job:12:2", "status"), "waiting_for_prerequisites");
  EXPECT_EQ(field("job:12:2", "ended_ms"), "");
  FlowCommit last = commit(flow, 2);
  last.dispatches = {{"job:12:1", {}}};
  ASSERT_TRUE(flows_->commit(last));
  const ClaimedJob claimed = claim_one();
  EXPECT_EQ(claimed.attempt, 1U);
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
}

TEST_P(FlowsCommit, OperatorCannotRequeueAFlowNode) {
  const FlowIds place = flows_->create(draft(1)).value();
  Job approval = job(place.first_job);
  approval.script_type = "approval";
  const std::vector<Job> one{approval};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  ASSERT_TRUE(flows_->put_flow(flow(place), "{}"));
  FlowCommit first = commit(place.flow, 0);
  first.ends = {ended("job:12:1", "error", "rejected")};
  ASSERT_TRUE(flows_->commit(first));
  const auto refused = store_->requeue(1, "job:12:1");
  EXPECT_EQ(outcome(refused), "conflict");
  EXPECT_THAT(refused.error().message, HasSubstr("flow retry"));
  FlowCommit next = commit(place.flow, 1);
  next.requeued_jobs = {"job:12:1"};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(state("job:12:1"), "planned");
}

TEST_P(FlowsCommit, OperatorCannotRequeueASkippedNode) {
  const Id flow = new_flow(2);
  FlowCommit first = commit(flow, 0);
  first.ends = {ended("job:12:1", "error", "not_needed"), ended("job:12:2", "error", "skipped")};
  ASSERT_TRUE(flows_->commit(first));
  for (const char* job : {"job:12:1", "job:12:2"}) {
    const auto refused = store_->requeue(1, job);
    EXPECT_EQ(outcome(refused), "conflict") << job;
    EXPECT_THAT(refused.error().message, HasSubstr("is run by its flow: see mycojobs flow retry"));
    EXPECT_EQ(state(job), "ended") << job;
  }
  FlowCommit next = commit(flow, 1);
  next.requeued_jobs = {"job:12:1"};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1") << "the flow of the job may requeue it";
}

TEST_P(FlowsCommit, ResetNodeEndsAgainInTheSameCommit) {
  const Id flow = new_flow(2);
  FlowCommit first = commit(flow, 0);
  first.ends = {ended("job:12:1", "error", "not_needed")};
  ASSERT_TRUE(flows_->commit(first));
  FlowCommit next = commit(flow, 1);
  next.replanned_jobs = {"job:12:1"};
  next.ends = {ended("job:12:1", "finished", "ok")};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(state("job:12:1"), "ended");
  EXPECT_EQ(view("job:12:1").status, "finished");
}

TEST_P(FlowsCommit, CheckpointIsReadWithLaterFacts) {
  const Id flow = new_flow(1);
  FlowCommit first = commit(flow, 0, 3);
  first.checkpoint = "state";
  ASSERT_TRUE(flows_->commit(first));
  ASSERT_TRUE(flows_->commit(commit(flow, 3, 2)));
  const FlowReadResult run = read(flow, std::nullopt);
  EXPECT_EQ(run.checkpoint, "state");
  EXPECT_EQ(run.checkpoint_revision, 3U);
  ASSERT_EQ(run.facts.size(), 2U);
  EXPECT_EQ(run.facts[0].revision, 4U);
  EXPECT_EQ(run.revision, 5U);
  EXPECT_EQ(read(flow, 0).facts.size(), 5U);
  EXPECT_EQ(read(flow, 0).checkpoint, "");
}

TEST_P(FlowsCommit, LongJournalsAreReadInPages) {
  const Id flow = new_flow(1);
  for (std::uint64_t at = 0; at < 2500; at += 500) ASSERT_TRUE(flows_->commit(commit(flow, at, 500)));
  std::uint64_t last = 0;
  std::size_t count = 0;
  for (bool more = true; more;) {
    const FlowReadResult run = read(flow, last);
    ASSERT_LE(run.facts.size(), 1000U);
    ASSERT_FALSE(run.facts.empty());
    EXPECT_EQ(run.facts.front().revision, last + 1);
    EXPECT_THAT(run.anomalies, IsEmpty());
    last = run.facts.back().revision;
    count += run.facts.size();
    more = run.has_more;
  }
  EXPECT_EQ(count, 2500U);
}

MJ_BOTH_STORES(FlowsCommit);

}  // namespace
}  // namespace mycojobs
