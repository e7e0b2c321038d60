// Arbitrary data from other clients in the keys of flows: calls return an error that names the key, or report an
// anomaly. No other call fails.
#include <gmock/gmock.h>

#include <functional>

#include "contract/flow_contract.h"

namespace mycojobs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
class FlowsHostile : public FlowContract {};

TEST_P(FlowsHostile, F33F39InvalidFactsAreAnomalies) {
  const Id flow = new_flow(1);
  begin(flow);
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "2-0", "colour", "red"});
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "3-0", "f", "ready", "at", "soon", "n", "1"});
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "4-0", "f", "ready", "at", "5", "n", "-1"});
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "5-7", "f", "ready", "at", "5", "n", "1"});
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "9-0", "f", "\x1b[2J", "at", "5"});
  const FlowReadResult run = read(flow);
  EXPECT_EQ(run.revision, 9U);
  ASSERT_THAT(run.facts, SizeIs(2));
  EXPECT_EQ(run.facts[1].revision, 9U);
  ASSERT_THAT(run.anomalies, SizeIs(5));
  EXPECT_THAT(run.anomalies[0], HasSubstr("2-0"));
  EXPECT_THAT(run.anomalies[4], HasSubstr("lacks revision 6 to 8"));
  EXPECT_EQ(flows_->commit(commit(flow, 9)).value(), 10U);
}

TEST_P(FlowsHostile, PageWithoutFactsIsNotTheEnd) {
  const Id flow = new_flow(0);
  begin(flow);
  for (int i = 2; i < 1500; ++i)
    backend_->run_command(1, {"XADD", "mj:flow-journal:1", std::to_string(i) + "-0", "x", "y"});
  ASSERT_TRUE(flows_->commit(commit(flow, 1499)));
  const FlowReadResult run = read(flow, 1);
  ASSERT_FALSE(run.facts.empty());
  EXPECT_EQ(run.facts[0].revision, 1500U);
}

TEST_P(FlowsHostile, F59EntryBeyondAllNumbersIsAClearError) {
  const Id flow = new_flow(0);
  begin(flow);
  backend_->run_command(1, {"XADD", "mj:flow-journal:1", "18446744073709551000-0", "x", "y"});
  const auto run = flows_->read(1, flow, 0);
  EXPECT_EQ(outcome(run), "invalid");
  EXPECT_THAT(run.error().message, HasSubstr("mj:flow-journal:1"));
  EXPECT_EQ(outcome(flows_->commit(commit(flow, 1))), "invalid");
  EXPECT_EQ(outcome(flows_->mark_due(1, flow)), "invalid");
}

TEST_P(FlowsHostile, FlowWithADeletedJournalResumesFromItsCheckpoint) {
  const Id flow = new_flow(0);
  FlowCommit first = commit(flow, 0, 5);
  first.checkpoint = "state";
  ASSERT_TRUE(flows_->commit(first));
  backend_->erase(1, "mj:flow-journal:1");
  const FlowReadResult run = read(flow, std::nullopt);
  EXPECT_EQ(run.revision, 5U);
  EXPECT_EQ(run.checkpoint, "state");
  EXPECT_THAT(run.anomalies, ElementsAre(HasSubstr("mj:flow-journal:1 is missing")));
  EXPECT_EQ(flows_->commit(commit(flow, 5)).value(), 6U);
  EXPECT_EQ(read(flow, std::nullopt).facts.size(), 1U);
}

TEST_P(FlowsHostile, InvalidOrFutureCheckpointIsIgnored) {
  const Id flow = new_flow(0);
  begin(flow);
  backend_->run_command(1, {"HSET", "mj:flow-checkpoint:1", "at", "900", "text", "forged"});
  FlowReadResult run = read(flow, std::nullopt);
  EXPECT_EQ(run.checkpoint, "");
  EXPECT_THAT(run.facts, SizeIs(1));
  EXPECT_EQ(run.revision, 1U);
  EXPECT_THAT(run.anomalies, SizeIs(1));
  backend_->run_command(1, {"HSET", "mj:flow-checkpoint:1", "at", "-7", "text", "forged"});
  EXPECT_THAT(read(flow, std::nullopt).facts, SizeIs(1));
  backend_->erase(1, "mj:flow-checkpoint:1");
  EXPECT_THAT(read(flow, std::nullopt).facts, SizeIs(1));
}

TEST_P(FlowsHostile, UnraisedEventsCanBeConsumed) {
  const Id flow = new_flow(0);
  begin(flow);
  backend_->run_command(1, {"RPUSH", "mj:flow-events:1", "", "nonsense", "job job:12:1", std::string(5000, ' ')});
  EXPECT_THAT(read(flow).events, SizeIs(4));
  FlowCommit next = commit(flow, 1, 0);
  next.applied_events = 4;
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_THAT(read(flow).events, IsEmpty());
}

TEST_P(FlowsHostile, IndexesWithInvalidMembersStillWork) {
  const Id flow = new_flow(0);
  begin(flow);
  ASSERT_TRUE(flows_->mark_due(1, flow));
  backend_->run_command(1, {"ZADD", "mj:flows:due", "1", "x", "2", "999", "3", "-5", "4", "99999999999"});
  backend_->run_command(1, {"ZADD", "mj:flows:active", "7", "x", "8", "99999999999"});
  backend_->run_command(1, {"ZADD", "mj:flows:ended", "7", "x", "8", "999"});
  EXPECT_THAT(due(), ElementsAre(flow));
  EXPECT_THAT(last_anomaly(), HasSubstr("mj:flows:due names"));
  EXPECT_THAT(due(), ElementsAre(flow));
  EXPECT_THAT(active(), ElementsAre(flow));
  EXPECT_EQ(flows_->retire(1, 1, 100).value(), 0U);
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:flows:ended"}).number(), 0U);
}

TEST_P(FlowsHostile, ForgedMarkIsNotAFlow) {
  backend_->run_command(1, {"HSET", "mj:flow:5", "caller", "x"});
  backend_->run_command(1, {"HSET", "flow:6", "id", "6", "status", "started"});
  EXPECT_EQ(outcome(flows_->commit(commit(5, 0))), "not_found");
  EXPECT_EQ(outcome(flows_->commit(commit(6, 0))), "not_found");
  EXPECT_EQ(read(6).revision, 0U);
  EXPECT_FALSE(read(6).record.empty());
  EXPECT_TRUE(read(7).record.empty());
  EXPECT_TRUE(flows_->mark_due(1, 6));
  EXPECT_EQ(outcome(flows_->remove(1, 6)), "not_found");
}

TEST_P(FlowsHostile, OverwrittenClaimFailsOnlyItsJob) {
  const Id flow = new_flow(2);
  backend_->run_command(1, {"DEL", "mj:claim:job:12:1"});
  backend_->run_command(1, {"SET", "mj:claim:job:12:1", "x"});
  FlowCommit first = commit(flow, 0);
  first.dispatches = {{"job:12:1", {}}, {"job:12:2", {}}};
  ASSERT_TRUE(flows_->commit(first));
  EXPECT_EQ(events(flow), "job job:12:1");
  EXPECT_EQ(view("job:12:1").detail, "dead_letter");
  EXPECT_EQ(claim_one().ref.job_key, "job:12:2");
}

TEST_P(FlowsHostile, DeletedClaimIsCreatedAgain) {
  const Id flow = new_flow(1);
  backend_->erase(1, "mj:claim:job:12:1");
  begin(flow, {"job:12:1"});
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_EQ(events(flow), "job job:12:1");
}

// The record of an `each` node is written at its first dispatch, under an id that the flow has reserved.
TEST_P(FlowsHostile, ClientRecordIsNotANode) {
  const Id flow = new_flow(1);
  begin(flow);
  const std::string key = "job:12:2";
  const Fields own{{"id", "2"},
                   {"caller_id", "12"},
                   {"context_id", "1"},
                   {"script_type", "python"},
                   {"script", "print('mine')"},
                   {"status", "finished"},
                   {"result", R"({"forged":"1"})"},
                   {"note", "of the client"}};
  ASSERT_TRUE(store_->save(1, key, own));
  FlowCommit next = commit(flow, 1);
  FlowDispatch dispatch{key, {}};
  dispatch.new_node_job = job(2, "print('planned')");
  next.dispatches = {dispatch};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(field(key, "note"), "of the client");
  EXPECT_EQ(field(key, "script"), "print('mine')");
  EXPECT_THAT(last_anomaly(), HasSubstr(key + " was written by another client"));
  EXPECT_THAT(claim(), IsEmpty()) << "its script is not run";
  EXPECT_THAT(events(flow), HasSubstr("job " + key));
  EXPECT_EQ(view(key).status, "error");
  EXPECT_EQ(view(key).detail, "dead_letter");
  EXPECT_EQ(field(key, "result"), "") << "the result in the forged record is ignored";
  EXPECT_NE(outcome(store_->requeue(1, key)), "ok") << "a requeue is rejected, too";
  FlowCommit retry = commit(flow, 2);
  retry.requeued_jobs = {key};
  ASSERT_TRUE(flows_->commit(retry));
  EXPECT_THAT(claim(), IsEmpty());
}

TEST_P(FlowsHostile, KeyOfAnotherTypeIsNotANode) {
  const Id flow = new_flow(1);
  begin(flow);
  backend_->put_text(1, "job:12:2", "text");
  FlowCommit next = commit(flow, 1);
  FlowDispatch dispatch{"job:12:2", {}};
  dispatch.new_node_job = job(2, "print('planned')");
  next.dispatches = {dispatch};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(state("job:12:2"), "ended");
  EXPECT_THAT(events(flow), HasSubstr("job job:12:2"));
}

TEST_P(FlowsHostile, JobOfAnotherFlowIsUnchanged) {
  const Id one = new_flow(1), two = new_flow(1);
  FlowCommit theft = commit(one, 0);
  theft.dispatches = {{"job:12:2", {}}};
  theft.ends = {{"job:12:2", {{"status", "error"}}}};
  theft.cancelled_jobs = {"job:12:2"};
  ASSERT_TRUE(flows_->commit(theft));
  EXPECT_EQ(state("job:12:2"), "planned");
  EXPECT_THAT(last_anomaly(), HasSubstr("belongs to flow 1 " + std::to_string(two)));
  theft = commit(one, 1);
  theft.dispatches = {{"actor:12", {}}};
  EXPECT_EQ(outcome(flows_->commit(theft)), "invalid");
  EXPECT_EQ(read(one).revision, 1U);
}

TEST_P(FlowsHostile, FlowFieldsCannotBeChanged) {
  const Id flow = new_flow(2);
  backend_->run_command(
      1, {"HSET", "flow:1", "jobs", "[99]", "definition_hash", "evil", "caller_id", "1", "theirs", "kept"});
  const Fields record = read(flow).record;
  EXPECT_THAT(record, Contains(std::pair<std::string, std::string>("jobs", "[1,2]")));
  EXPECT_THAT(record, Contains(std::pair<std::string, std::string>("definition_hash", "abc")));
  EXPECT_THAT(record, Contains(std::pair<std::string, std::string>("caller_id", "12")));
  EXPECT_THAT(record, Contains(std::pair<std::string, std::string>("theirs", "kept")));
}

TEST_P(FlowsHostile, DeletedRecordIsWrittenWithTheNextCommit) {
  const Id flow = new_flow(2);
  begin(flow);
  backend_->erase(1, "flow:1");
  const Fields of_its_creation = read(flow).record;
  EXPECT_THAT(of_its_creation, Contains(std::pair<std::string, std::string>("definition_hash", "abc")));
  FlowCommit next = commit(flow, 1);
  next.record_fields = {{"status", "started"}};
  ASSERT_TRUE(flows_->commit(next));
  EXPECT_EQ(field("flow:1", "caller_id"), "12");
  EXPECT_EQ(field("flow:1", "jobs"), "[1,2]");
  EXPECT_EQ(field("flow:1", "status"), "started");
}

TEST_P(FlowsHostile, EventsKeyOfAnotherTypeIsAnAnomaly) {
  const Id flow = new_flow(1);
  begin(flow, {"job:12:1"});
  backend_->put_text(1, "mj:flow-events:1", "x");
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_THAT(last_anomaly(), HasSubstr("mj:flow-events:1"));
  EXPECT_THAT(due(), ElementsAre(flow));
  const FlowReadResult run = read(flow);
  EXPECT_THAT(run.events, IsEmpty());
  EXPECT_THAT(run.anomalies, ElementsAre(HasSubstr("mj:flow-events:1 is a string")));
  EXPECT_TRUE(flows_->commit(commit(flow, 1)));
}

TEST_P(FlowsHostile, KeysOfAnotherTypeAreErrorsWithoutChanges) {
  constexpr Id flow = 1;
  const std::vector<Job> one{job(1)};
  FlowCommit next = commit(flow, 1);
  next.dispatches = {{"job:12:1", {}}};
  const std::vector<std::pair<std::string, std::function<std::string()>>> cases{
      {"flow:1", [&] { return outcome(flows_->read(1, flow, 0)); }},
      {"flow:1", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flow:1", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flow-journal:1", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flow-checkpoint:1", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flow-dependents:1", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flow-dependents:1", [&] { return outcome(flows_->await_flow(1, 2, 1)); }},
      {"mj:flows:due", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flows:due", [&] { return outcome(flows_->due_flows(1, 5)); }},
      {"mj:flows:due", [&] { return outcome(store_->submit(job(9))); }},
      {"mj:flows:active", [&] { return outcome(flows_->commit(next)); }},
      {"mj:flows:active", [&] { return outcome(flows_->active_flows(1, 0, 5)); }},
      {"mj:flows:ended", [&] { return outcome(flows_->create(draft(1))); }},
      {"mj:flows:ended", [&] { return outcome(flows_->retire(1, 1, 5)); }},
      {"mj:flow-idempotency:12", [&] { return outcome(flows_->create(draft(0, "k"))); }},
      {"mj:flow-catalog", [&] { return outcome(flows_->list(1, "", 0, 5)); }},
      {"mj:definition:abc", [&] { return outcome(flows_->definition(1, "abc")); }},
      {"mj:coordinator", [&] { return outcome(flows_->acquire_leadership(1, "a", "b", 1)); }},
      {"mj:coordinator", [&] { return outcome(flows_->release_leadership(1, "a")); }},
      {"mj:coordinator", [&] { return outcome(flows_->leader(1)); }},
      {"mj:schedules", [&] { return outcome(flows_->schedules(1)); }},
      {"mj:schedule:a", [&] { return outcome(flows_->remove_schedule(1, "a")); }},
      {"job:12:1", [&] { return outcome(flows_->put_jobs(1, flow, one)); }},
  };
  for (const auto& [key, call] : cases) {
    SetUp();
    begin(new_flow(1));
    backend_->erase(1, key);
    backend_->put_text(1, key, "nonsense");
    EXPECT_EQ(call(), "invalid") << key;
    if (key != "job:12:1") {
      EXPECT_EQ(field("job:12:1", "detail"), "planned") << key;
    }
    backend_->erase(1, key);
  }
}

TEST_P(FlowsHostile, FlowWithAnOverwrittenRecordIsCancelledFully) {
  const Id flow = new_flow(2);
  begin(flow, {"job:12:1", "job:12:2"});
  backend_->erase(1, "job:12:1");
  backend_->put_text(1, "job:12:1", "nonsense");
  FlowCommit cancelled = commit(flow, 1);
  cancelled.cancelled_jobs = {"job:12:1", "job:12:2"};
  cancelled.record_fields = {{"status", "error"}};
  EXPECT_EQ(outcome(flows_->commit(cancelled)), "ok");
  EXPECT_EQ(field("flow:1", "status"), "error");
  EXPECT_EQ(state("job:12:1"), "ended");
  EXPECT_EQ(state("job:12:2"), "ended");
  EXPECT_EQ(field("job:12:2", "detail"), "cancelled");
}

TEST_P(FlowsHostile, InvalidCountersRestart) {
  backend_->put_text(1, "mj:next:flow", "many");
  backend_->put_text(1, "mj:next:12", "-3");
  new_flow(2);
  EXPECT_EQ(state("job:12:2"), "planned");
  backend_->put_text(1, "mj:next:flow", "4294967295");
  EXPECT_EQ(outcome(flows_->create(draft(0))), "too_large");
  backend_->put_text(1, "mj:next:12", "4294967290");
  EXPECT_EQ(outcome(flows_->create(draft(10))), "too_large");
  backend_->run_command(1, {"DEL", "mj:next:flow"});
  backend_->push(1, "mj:next:flow", "x");
  EXPECT_EQ(outcome(flows_->create(draft(0))), "invalid");
}

MJ_BOTH_STORES(FlowsHostile);

// A submitter with its own Redis user may only push keys onto queues and msg_out. Its pushes must not start, send, end
// or block records of other clients that were only created.
class PushedKeys : public FlowContract {
 protected:
  static std::string key(Id id) { return "job:12:" + std::to_string(id); }
  void create(Id id, std::uint64_t queue_timeout_ms = 0) {
    Job record = job(id);
    record.queue_timeout_ms = queue_timeout_ms;
    const auto new_record = store_->create_job(record);
    ASSERT_TRUE(new_record) << new_record.error().message;
  }
  void push(Id id) { backend_->push(1, "queue:python", key(id)); }
  std::string stands(Id id) { return field(key(id), "status") + ' ' + field(key(id), "detail"); }
};

TEST_P(PushedKeys, DoNotStartCreatedJobs) {
  create(1);
  push(1);
  EXPECT_THAT(claim(), IsEmpty());
  EXPECT_EQ(stands(1), "dispatched created");
  EXPECT_THAT(last_anomaly(), HasSubstr(key(1) + " was created, but not started"));
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U) << "the entry is dropped";
  ASSERT_TRUE(store_->start_job(1, key(1)));
  EXPECT_EQ(claim_one().ref.job_key, key(1));
}

TEST_P(PushedKeys, DoNotStartCreatedJobsWithChangedRecords) {
  create(1);
  ASSERT_TRUE(store_->save(1, key(1), {{"detail", "queued"}}));
  push(1);
  EXPECT_THAT(claim(), IsEmpty());
  EXPECT_THAT(last_anomaly(), HasSubstr(key(1) + " was created, but not started"));
  push(1);
  EXPECT_EQ(store_->purge_queue(1, "queue:python", 10).value(), 1U);
  EXPECT_EQ(field(key(1), "status"), "dispatched");
  push(1);
  ASSERT_TRUE(store_->start_job(1, key(1)));
  EXPECT_EQ(claim_one().ref.job_key, key(1));
}

TEST_P(PushedKeys, StartJobsOfPlainClients) {
  ASSERT_TRUE(store_->save(1, key(1), {{"id", "1"}, {"script", "print(1)"}, {"script_type", "python"}}));
  push(1);
  EXPECT_EQ(claim_one().ref.job_key, key(1));
}

TEST_P(PushedKeys, DoNotEndCreatedJobs) {
  create(1, 1);
  push(1);
  backend_->run_command(1, {"HSET", "mj:push-search", "at", "1"});  // the next tick searches the lists
  ASSERT_TRUE(store_->tick(1, {}));
  EXPECT_EQ(backend_->run_command(1, {"ZCARD", "mj:queue-deadlines"}).number(), 0U) << "the job does not wait yet";
  EXPECT_EQ(store_->purge_queue(1, "queue:python", 10).value(), 1U);
  EXPECT_EQ(stands(1), "dispatched created") << "it is in no queue";
}

TEST_P(PushedKeys, DoNotBlockTheStartOfCreatedJobs) {
  create(1);
  push(1);
  ASSERT_TRUE(store_->start_job(1, key(1)));
  EXPECT_EQ(stands(1), "dispatched queued");
  EXPECT_EQ(claim_one().ref.job_key, key(1));
  EXPECT_THAT(claim(), IsEmpty()) << "the other entry of it";
}

TEST_P(PushedKeys, DoNotBlockCreatedJobsOfFlowsAndMessages) {
  create(1);
  create(2);
  push(1);
  push(2);
  const FlowIds place = flows_->create(draft(0)).value();
  const std::vector<Job> jobs{job(1)};
  const auto put = flows_->put_jobs(1, place.flow, jobs);
  EXPECT_TRUE(put) << put.error().message;
  ASSERT_TRUE(store_->save(1, "message:12:101", {{"id", "101"}, {"caller_id", "12"}, {"context_id", "1"}}));
  const std::string content(64, 'a');
  const auto routed = store_->route_message(
      1, {"message:12:101", {content, {{"address", "http://there:1"}}}, 60000, 0, {{job(2), "queue:python"}}});
  EXPECT_TRUE(routed) << routed.error().message;
  EXPECT_THAT(claim(), IsEmpty());
}

TEST_P(PushedKeys, DoNotBlockTheEndOfCreatedJobs) {
  create(1);
  push(1);
  EXPECT_EQ(outcome(store_->delete_record(1, key(1))), "ok");
}

TEST_P(PushedKeys, DoNotSendCreatedMessages) {
  const std::string message = "message:12:101";
  ASSERT_TRUE(
      store_->save(1, message, {{"id", "101"}, {"caller_id", "12"}, {"status", "dispatched"}, {"detail", "created"}}));
  backend_->push(1, "msg_out", message);
  EXPECT_THAT(store_->msg_out_keys(1).value(), IsEmpty());
  EXPECT_THAT(last_anomaly(), HasSubstr(message + ", which was created but not sent"));
  EXPECT_EQ(field(message, "status"), "dispatched");
  ASSERT_TRUE(store_->post_message(1, message, {}));
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(message));
}

MJ_BOTH_STORES(PushedKeys);

}  // namespace
}  // namespace mycojobs
