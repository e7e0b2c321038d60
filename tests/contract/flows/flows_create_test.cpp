// Creation of flows: ids, jobs outside of queues, records written by others, definitions.
#include <gmock/gmock.h>

#include "contract/flow_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
class FlowsCreate : public FlowContract {};

TEST_P(FlowsCreate, AllocatesAFlowAndConsecutiveJobIds) {
  const FlowIds first = flows_->create(draft(3)).value();
  EXPECT_EQ(first.flow, 1U);
  EXPECT_EQ(first.first_job, 1U);
  EXPECT_FALSE(first.existed);
  const FlowIds second = flows_->create(draft(2)).value();
  EXPECT_EQ(second.flow, 2U);
  EXPECT_EQ(second.first_job, 4U);
  EXPECT_EQ(field("flow:2", "status"), "dispatched");
  EXPECT_EQ(field("flow:2", "detail"), "creating");
  EXPECT_EQ(field("flow:2", "caller_id"), "12");
  EXPECT_EQ(field("flow:2", "context_id"), "1");
  EXPECT_EQ(store_->submit(job(0)).value().id, 6U);
}

TEST_P(FlowsCreate, IdsOfOtherClientsAreSkipped) {
  backend_->run_command(1, {"HSET", "job:12:3", "script", "x"});
  backend_->run_command(1, {"HSET", "job:12:7", "script", "x"});
  backend_->run_command(1, {"HSET", "flow:1", "id", "1"});
  backend_->run_command(1, {"HSET", "flow:2", "id", "2"});
  const FlowIds place = flows_->create(draft(4)).value();
  EXPECT_GT(place.first_job, 7U);
  EXPECT_GT(place.flow, 2U);
  EXPECT_EQ(field("flow:1", "detail"), "");
}

TEST_P(FlowsCreate, IdempotencyKeyReturnsTheSameIds) {
  const FlowIds first = flows_->create(draft(3, "nightly", "abc")).value();
  const FlowIds again = flows_->create(draft(3, "nightly", "abc")).value();
  EXPECT_EQ(again.flow, first.flow);
  EXPECT_EQ(again.first_job, first.first_job);
  EXPECT_TRUE(again.existed);
  const auto other = flows_->create(draft(3, "nightly", "def"));
  EXPECT_EQ(outcome(other), "conflict");
  EXPECT_THAT(other.error().message, HasSubstr("nightly"));
  FlowDraft of_another = draft(3, "nightly", "def");
  of_another.caller = 13;
  EXPECT_FALSE(flows_->create(of_another).value().existed);
}

TEST_P(FlowsCreate, MissingCallerOrContextIsRejected) {
  FlowDraft wrong = draft(1);
  wrong.caller = 0;
  EXPECT_EQ(outcome(flows_->create(wrong)), "invalid");
  wrong = draft(1);
  wrong.context = 0;
  EXPECT_EQ(outcome(flows_->create(wrong)), "invalid");
}

TEST_P(FlowsCreate, JobsArePlannedAndInNoQueue) {
  const Id flow = new_flow(2);
  EXPECT_EQ(state("job:12:1"), "planned");
  EXPECT_EQ(field("job:12:1", "status"), "waiting_for_prerequisites");
  EXPECT_EQ(field("job:12:1", "detail"), "planned");
  EXPECT_EQ(field("job:12:1", "flow_id"), std::to_string(flow));
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_THAT(claim(5), IsEmpty());
  EXPECT_EQ(field("flow:1", "detail"), "new");
  EXPECT_EQ(flows_->definition(1, "abc").value(), "{}");
  EXPECT_EQ(outcome(flows_->definition(1, "abcd")), "not_found");
  EXPECT_THAT(active(), IsEmpty());
}

TEST_P(FlowsCreate, RepeatedCallsChangeNothing) {
  const FlowIds place = flows_->create(draft(2, "k")).value();
  put(place, 2);
  begin(place.flow, {"job:12:1"});
  const Fields record = store_->load(1, "flow:1").value();
  put(flows_->create(draft(2, "k")).value(), 2);
  EXPECT_EQ(store_->load(1, "flow:1").value(), record);
  EXPECT_EQ(state("job:12:1"), "queued");
  EXPECT_EQ(state("job:12:2"), "planned");
  EXPECT_EQ(flows_->list(1, "", 0, 10).value().size(), 1U);
}

TEST_P(FlowsCreate, OtherContentIsAConflict) {
  const Id flow = new_flow(2);
  std::vector<Job> other{job(1, "print(2)")};
  EXPECT_EQ(outcome(flows_->put_jobs(1, flow, other)), "conflict");
  Flow changed = FlowContract::flow({flow, 1, false});
  changed.definition_hash = "def";
  EXPECT_EQ(outcome(flows_->put_flow(changed, "{}")), "conflict");
  EXPECT_EQ(outcome(flows_->put_jobs(1, 99, other)), "not_found");
  EXPECT_EQ(outcome(flows_->put_flow(FlowContract::flow({99, 1, false}), "{}")), "not_found");
}

TEST_P(FlowsCreate, StartedFlowAcceptsNoMoreJobs) {
  const Id flow = new_flow(1);
  begin(flow);
  const std::vector<Job> more{job(50)};
  EXPECT_EQ(outcome(flows_->put_jobs(1, flow, more)), "conflict");
}

TEST_P(FlowsCreate, RecordsOfOtherClientsAreAdopted) {
  backend_->run_command(1, {"HSET",   "job:12:100", "id",       "100",         "caller_id",  "12",      "context_id",
                            "1",      "script",     "print(1)", "script_type", "python",     "timeout", "9",
                            "theirs", "kept",       "status",   "dispatched",  "dependends", "[ 5 ]"});
  const FlowIds place = flows_->create(draft(0)).value();
  Job adopted = job(100);
  adopted.timeout = 9;
  adopted.dependends = {5};
  const std::vector<Job> one{adopted};
  const auto put = flows_->put_jobs(1, place.flow, one);
  ASSERT_TRUE(put) << put.error().message;
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  EXPECT_EQ(state("job:12:100"), "planned");
  EXPECT_EQ(field("job:12:100", "theirs"), "kept");
  EXPECT_EQ(field("job:12:100", "dependends"), "[ 5 ]");
}

TEST_P(FlowsCreate, IndependentJobsAreNotAdopted) {
  const FlowIds place = flows_->create(draft(0)).value();
  const auto expect_put_rejected = [&](Id id) {
    const std::vector<Job> one{job(id)};
    const auto put = flows_->put_jobs(1, place.flow, one);
    EXPECT_EQ(outcome(put), "conflict");
    return put ? std::string() : put.error().message;
  };
  const auto write_plain_job = [&](const std::string& key, const std::string& script, const std::string& status) {
    backend_->run_command(1, {"HSET", key, "caller_id", "12", "context_id", "1", "script", script, "script_type",
                              "python", "status", status});
  };
  submit(1);
  EXPECT_THAT(expect_put_rejected(1), HasSubstr("job:12:1 is queued"));
  write_plain_job("job:12:2", "print(1)", "dispatched");
  backend_->push(1, "queue:python", "job:12:2");
  EXPECT_THAT(expect_put_rejected(2), HasSubstr("queue:python"));
  write_plain_job("job:12:3", "print(1)", "finished");
  EXPECT_THAT(expect_put_rejected(3), HasSubstr("has run"));
  write_plain_job("job:12:4", "print(7)", "dispatched");
  EXPECT_THAT(expect_put_rejected(4), HasSubstr("job:12:4"));
  const FlowIds other = flows_->create(draft(1)).value();
  put(other, 1);
  EXPECT_THAT(expect_put_rejected(other.first_job), HasSubstr("belongs to flow 1 " + std::to_string(other.flow)));
}

TEST_P(FlowsCreate, NodesRunByTheFlowHaveTheirOwnQueue) {
  const FlowIds place = flows_->create(draft(1)).value();
  Job wait = job(place.first_job, "");
  wait.script_type = "wait";
  wait.name = "later";
  const std::vector<Job> one{wait};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  EXPECT_EQ(field("mj:claim:job:12:1", "queue"), "queue:flow");
  EXPECT_EQ(field("job:12:1", "script"), "later");
}

TEST_P(FlowsCreate, PushedPlannedJobIsDroppedAndNeverRuns) {
  new_flow(1);
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_THAT(claim(5), IsEmpty());
  EXPECT_THAT(last_anomaly(), HasSubstr("job:12:1 is planned"));
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(store_->submit(job(1)).value().detail, "planned");
  EXPECT_THAT(claim(5), IsEmpty());
}

MJ_BOTH_STORES(FlowsCreate);

}  // namespace
}  // namespace mycojobs
