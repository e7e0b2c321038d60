// Events of ended jobs of a flow: each is stored in the same step as the end, in order, and consumed once.
#include <gmock/gmock.h>

#include "contract/flow_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
class FlowsEvents : public FlowContract {
 protected:
  static JobEnd failed(const std::string& detail = "exit") {
    JobEnd end;
    end.status = JobStatus::error;
    end.detail = detail;
    return end;
  }
  // Ends a flow.
  std::uint64_t finish(Id flow, std::uint64_t expected, Id parent = 0) {
    FlowCommit last = commit(flow, expected);
    last.record_fields = {{"status", "finished"}};
    last.ended = true;
    last.parent = parent;
    return flows_->commit(last).value();
  }
};

TEST_P(FlowsEvents, EndRaisesAnEventAndTheFlowIsDue) {
  const Id flow = new_flow(2);
  begin(flow, {"job:12:1", "job:12:2"});
  EXPECT_THAT(due(), IsEmpty());
  const auto claimed = claim(2);
  ASSERT_EQ(outcome(end(claimed[1].ref, finished())), "ok");
  ASSERT_EQ(outcome(end(claimed[0].ref, failed())), "ok");
  EXPECT_EQ(events(flow), "job job:12:2, job job:12:1");
  EXPECT_THAT(due(), ElementsAre(flow));
}

TEST_P(FlowsEvents, RepeatedEndIsOneEvent) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  const ClaimedJob claimed = claim_one();
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(outcome(end(claimed.ref, failed())), "conflict");
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsEvents, EveryKindOfEndIsAnEvent) {
  const Id flow = new_flow(5);
  begin(flow, {"job:12:1", "job:12:2", "job:12:3", "job:12:4"});
  const auto claimed = claim(2);
  // A retry does not end the job.
  ASSERT_EQ(outcome(report(EndReport{claimed[0].ref, failed(), 0})), "ok");
  EXPECT_EQ(events(flow), "");
  // One job is cancelled while it waits, another before the flow dispatches it.
  ASSERT_TRUE(store_->cancel(1, "job:12:3"));
  ASSERT_TRUE(store_->cancel(1, "job:12:5"));
  EXPECT_EQ(events(flow), "job job:12:3, job job:12:5");
  // A dead letter: the maximum number of deliveries is exceeded.
  ClaimRequest again = request();
  again.max_deliveries = 1;
  ASSERT_EQ(outcome(report(Release{claimed[1].ref, "lost", true})), "ok");
  EXPECT_THAT(store_->claim(again).value().jobs, testing::SizeIs(1));
  EXPECT_EQ(events(flow), "job job:12:3, job job:12:5, job job:12:2");
  // The queue of the job is purged.
  EXPECT_EQ(state("job:12:4"), "live");
  ASSERT_TRUE(store_->tick(1, {}));
  ASSERT_TRUE(eventually([&] { return store_->tick(1, {}).has_value() && state("job:12:1") == "queued"; }));
  EXPECT_GE(store_->purge_queue(1, "queue:python", 10).value(), 1U);
  EXPECT_EQ(events(flow), "job job:12:3, job job:12:5, job job:12:2, job job:12:1");
}

TEST_P(FlowsEvents, ExpiredLeaseIsAnEndOnlyIfCancelled) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  ClaimedJob claimed = claim_one(1);
  wait_for_lease_expiry(claimed);
  ASSERT_TRUE(expire("job:12:1"));
  EXPECT_EQ(events(flow), "");
  claimed = claim_one(1);
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  wait_for_lease_expiry(claimed);
  ASSERT_TRUE(expire("job:12:1"));
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsEvents, ImpossiblePrerequisitesAndDeletedRecordsAreEnds) {
  const FlowIds place = flows_->create(draft(2)).value();
  Job conditional = job(1);
  conditional.prerequisites = {"file:/nowhere"};
  const std::vector<Job> jobs{conditional, job(2)};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, jobs));
  ASSERT_TRUE(flows_->put_flow(flow(place), "{}"));
  begin(place.flow, {"job:12:1"});
  EXPECT_THAT(claim(1), IsEmpty());
  EXPECT_EQ(state("job:12:1"), "prerequisites");
  ASSERT_TRUE(store_->complete_prerequisites(1, "job:12:1", "there is no such folder"));
  EXPECT_EQ(events(place.flow), "job job:12:1");
  backend_->erase(1, "job:12:2");
  FlowCommit next = commit(place.flow, 1);
  next.dispatches = {{"job:12:2", {}}};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(events(place.flow), "job job:12:1, job job:12:2");
  EXPECT_EQ(view("job:12:2").detail, "dead_letter");
}

TEST_P(FlowsEvents, OnlyConsumedEventsAreRemoved) {
  const Id flow = new_flow(3);
  begin(flow, {"job:12:1", "job:12:2", "job:12:3"});
  const auto claimed = claim(3);
  ASSERT_EQ(outcome(end(claimed[0].ref, finished())), "ok");
  ASSERT_EQ(outcome(end(claimed[1].ref, finished())), "ok");
  EXPECT_EQ(read(flow).events.size(), 2U);
  ASSERT_EQ(outcome(end(claimed[2].ref, finished())), "ok");  // between the read and the commit
  FlowCommit next = commit(flow, 1);
  next.applied_events = 2;
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(events(flow), "job job:12:3");
  EXPECT_THAT(due(), ElementsAre(flow));
  next = commit(flow, 2);
  next.applied_events = 1;
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_THAT(due(), IsEmpty());
}

// Without facts the revision does not change, so it cannot show that the first reply was lost.
TEST_P(FlowsEvents, RepeatedCommitConsumesNoOtherEvents) {
  const Id flow = new_flow(2);
  begin(flow, {"job:12:1", "job:12:2"});
  const auto claimed = claim(2);
  ASSERT_EQ(outcome(end(claimed[0].ref, finished())), "ok");
  auto other = backend_->stores().open_flows().value();
  ASSERT_TRUE(other->read(1, flow, 0));
  read(flow);
  FlowCommit next = commit(flow, 1, 0);
  next.applied_events = 1;
  ASSERT_TRUE(flows_->commit(next));
  ASSERT_EQ(outcome(end(claimed[1].ref, finished())), "ok");
  EXPECT_EQ(outcome(other->commit(next)), "conflict");
  EXPECT_EQ(events(flow), "job job:12:2");
}

TEST_P(FlowsEvents, EventsBeforeTheStartAreDeliveredThen) {
  const Id flow = new_flow(2);
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_THAT(due(), IsEmpty());
  begin(flow);
  EXPECT_THAT(due(), ElementsAre(flow));
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsEvents, DueIsByTime) {
  const Id soon = new_flow(0), late = new_flow(0), never = new_flow(0);
  const std::uint64_t now = store_->now_ms().value();
  FlowCommit one = commit(soon, 0);
  one.due_ms = 0;
  FlowCommit two = commit(late, 0);
  two.due_ms = now + 3600000;
  ASSERT_TRUE(flows_->commit(one));
  ASSERT_TRUE(flows_->commit(two));
  ASSERT_TRUE(flows_->commit(commit(never, 0)));
  const auto [flows, next] = flows_->due_flows(1, 100).value();
  EXPECT_THAT(flows, ElementsAre(soon));
  EXPECT_GT(next, 3500000U);
  EXPECT_LE(next, 3600000U);
  EXPECT_THAT(active(), ElementsAre(soon, late, never));
  EXPECT_THAT(flows_->active_flows(1, soon, 1).value(), ElementsAre(late));
  ASSERT_TRUE(flows_->commit(commit(soon, 1)));
  EXPECT_THAT(due(), IsEmpty());
}

TEST_P(FlowsEvents, RaisedFlowStaysDueAcrossACommit) {
  const Id flow = new_flow(0);
  begin(flow);
  ASSERT_TRUE(flows_->mark_due(1, flow));
  ASSERT_TRUE(flows_->mark_due(1, flow));
  EXPECT_THAT(due(), ElementsAre(flow));
  ASSERT_TRUE(flows_->commit(commit(flow, 1)));  // based on a read before the second mark_due()
  EXPECT_THAT(due(), ElementsAre(flow));
  ASSERT_TRUE(flows_->commit(commit(flow, 2, 0)));
  EXPECT_THAT(due(), IsEmpty());
  const Id not_begun = new_flow(0);
  ASSERT_TRUE(flows_->mark_due(1, not_begun));
  ASSERT_TRUE(flows_->mark_due(1, 999));
  EXPECT_THAT(due(), IsEmpty());
}

TEST_P(FlowsEvents, EndedFlowIsNoLongerActiveAndMayBeginAgain) {
  const Id flow = new_flow(1);
  begin(flow);
  finish(flow, 1);
  EXPECT_THAT(active(), IsEmpty());
  EXPECT_EQ(field("flow:1", "status"), "finished");
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_EQ(events(flow), "");
  ASSERT_TRUE(flows_->commit(commit(flow, 2)));
  EXPECT_THAT(active(), ElementsAre(flow));
}

TEST_P(FlowsEvents, ParentsAndWaitersAreNotifiedOfAnEnd) {
  const Id parent = new_flow(0), child = new_flow(0), waiting = new_flow(0);
  begin(parent), begin(child), begin(waiting);
  ASSERT_TRUE(flows_->await_flow(1, waiting, child));
  ASSERT_TRUE(flows_->await_flow(1, waiting, child));
  EXPECT_EQ(events(waiting), "");
  finish(child, 1, parent);
  EXPECT_EQ(events(parent), "flow flow:" + std::to_string(child));
  EXPECT_EQ(events(waiting), "flow flow:" + std::to_string(child));
  EXPECT_THAT(due(), ElementsAre(parent, waiting));
}

TEST_P(FlowsEvents, WaitForEndedOrMissingFlowEndsAtOnce) {
  const Id other = new_flow(0), waiting = new_flow(0);
  begin(other), begin(waiting);
  finish(other, 1);
  ASSERT_TRUE(flows_->await_flow(1, waiting, other));
  ASSERT_TRUE(flows_->await_flow(1, waiting, 999));
  EXPECT_EQ(events(waiting), "flow flow:1, flow flow:999");
}

// For a submitter, a flow of another caller has the same reply as a missing flow, whether it runs or has ended.
TEST_P(FlowsEvents, WaitForAnUnreadableFlowEndsAtOnce) {
  const Id waiting = new_flow(0), own = new_flow(0), running = new_flow(0), ended = new_flow(0);
  begin(waiting), begin(own), begin(running), begin(ended);
  finish(ended, 1);
  for (const Id other : {running, ended})
    backend_->run_command(1, {"HSET", "mj:flow:" + std::to_string(other), "caller", "66"});
  backend_->run_command(1, {"HSET", "context:1", "admins", "[1]", "submitters", "[12,66]", "readers", "[120]"});
  for (const Id other : {own, running, ended, Id{999}}) ASSERT_TRUE(flows_->await_flow(1, waiting, other));
  EXPECT_EQ(events(waiting), "absent flow:3, absent flow:4, absent flow:999");
  backend_->run_command(1, {"HSET", "context:1", "readers", "[12]"});
  for (const Id other : {running, ended}) ASSERT_TRUE(flows_->await_flow(1, waiting, other));
  EXPECT_EQ(events(waiting), "absent flow:3, absent flow:4, absent flow:999, flow flow:4");
}

TEST_P(FlowsEvents, OneCoordinatorLeads) {
  EXPECT_TRUE(flows_->acquire_leadership(1, "a", "host-a", 60000).value());
  EXPECT_TRUE(flows_->acquire_leadership(1, "a", "host-a", 60000).value());
  EXPECT_FALSE(flows_->acquire_leadership(1, "b", "host-b", 60000).value());
  EXPECT_EQ(flows_->leader(1).value(), std::pair(std::string("a"), std::string("host-a")));
  ASSERT_TRUE(flows_->release_leadership(1, "b"));
  EXPECT_EQ(flows_->leader(1).value().first, "a");
  ASSERT_TRUE(flows_->release_leadership(1, "a"));
  EXPECT_EQ(flows_->leader(1).value().first, "");
  EXPECT_TRUE(flows_->acquire_leadership(1, "b", "host-b", 1).value());
  ASSERT_TRUE(eventually([&] { return flows_->leader(1).value().first.empty(); }));
  EXPECT_TRUE(flows_->acquire_leadership(1, "a", "host-a", 60000).value());
  EXPECT_TRUE(flows_->acquire_leadership(2, "b", "host-b", 60000).value());
}

TEST_P(FlowsEvents, ClockRollbackDoesNotExtendLeadership) {
  ASSERT_TRUE(flows_->acquire_leadership(1, "a", "host-a", 1000).value());
  backend_->run_command(1, {"HSET", "mj:coordinator", "until_ms", std::to_string(store_->now_ms().value() + 3600000)});
  EXPECT_TRUE(flows_->acquire_leadership(1, "b", "host-b", 1000).value());
}

MJ_BOTH_STORES(FlowsEvents);

}  // namespace
}  // namespace mycojobs
