// `verify` detects damage to the data of flows, and a rebuild repairs it.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "contract/flow_contract.h"
#include "flows/flow_decider.h"
#include "inspect/verify/flow_verify.h"

namespace mycojobs {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class FlowsVerify : public FlowContract {
 protected:
  // Starts a flow build -> test. The job of build is queued.
  Id start_flow() {
    const auto plan = read_plan(nlohmann::json::parse(
        R"j({"name":"p","jobs":{"build":{"script":"print(1)","type":"python"},"test":{"needs":["build"],"script":"print(2)","type":"python"}}})j"));
    plan_ = plan.plan.value();
    const FlowIds place = flows_->create(draft(2)).value();
    std::vector<Job> jobs{job(place.first_job), job(place.first_job + 1)};
    EXPECT_TRUE(flows_->put_jobs(1, place.flow, jobs));
    Flow record = flow(place, "p");
    record.definition_hash = plan_.hash;
    record.jobs = {place.first_job, place.first_job + 1};
    EXPECT_TRUE(flows_->put_flow(record, plan_.canonical));
    state_ = initial_state(plan_);
    apply(place.flow, StartRun{"manual", 12}, 0);
    return place.flow;
  }
  // Commits one decision as advance_run() does.
  void apply(Id flow, decltype(FlowEvent::body) what, std::uint32_t taken) {
    FlowEvent event;
    event.now_ms = store_->now_ms().value();
    event.body = std::move(what);
    const auto decided = decide(plan_, state_, event);
    ASSERT_TRUE(decided) << decided.error().message;
    FlowCommit next = commit(flow, state_.revision, 0);
    next.facts = decided->facts;
    next.applied_events = taken;
    for (const Effect& effect : decided->effects) {
      const std::string key = "job:12:" + std::to_string(effect.node + 1);
      if (effect.kind == Effect::Kind::dispatch) next.dispatches.push_back({key, {}});
      if (effect.kind == Effect::Kind::fail)
        next.ends.push_back({key, {{"status", "error"}, {"detail", effect.detail}}});
    }
    state_ = decided->state;
    next.record_fields = {
        {"status", std::string(to_string(state_.status))}, {"detail", state_.detail}, {"error", state_.error}};
    next.ended = state_.status == FlowStatus::finished || state_.status == FlowStatus::error;
    next.checkpoint = checkpoint(plan_, state_);
    const auto done = flows_->commit(next);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(*done, state_.revision);
  }
  JobObserved seen(std::uint32_t node) {
    JobObserved out;
    out.node = node;
    out.ended = true;
    out.status = "finished";
    out.detail = "ok";
    return out;
  }
  std::vector<std::string> violated_rules() {
    const auto found = verify_flows(*flows_, *store_, 1);
    EXPECT_TRUE(found) << found.error().message;
    std::vector<std::string> out;
    if (found) {
      for (const Finding& each : *found) {
        EXPECT_TRUE(std::any_of(verify_rules().begin(), verify_rules().end(), [&](const VerifyRule& row) {
          return row.name == each.rule;
        })) << each.rule;
        out.push_back(each.rule);
        texts_ += each.text + "\n";
      }
    }
    return out;
  }
  // Expects that `rule` is found, that a rebuild repairs the damage, and that nothing is found afterwards.
  void mends(const std::string& rule) {
    texts_.clear();
    EXPECT_THAT(violated_rules(), Contains(rule)) << texts_;
    EXPECT_FALSE(rebuild_flows(*flows_, *store_, 1, true)->differences.empty()) << rule;
    EXPECT_THAT(violated_rules(), Contains(rule)) << "a dry run repairs nothing";
    EXPECT_FALSE(rebuild_flows(*flows_, *store_, 1, false)->differences.empty()) << rule;
    texts_.clear();
    EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
    EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false)->differences, IsEmpty())
        << "a repeated rebuild changes nothing";
  }

  FlowPlan plan_;
  RunState state_;
  std::string texts_;
};

TEST_P(FlowsVerify, HealthyFlowIsClean) {
  const Id flow = start_flow();
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  read(flow);
  apply(flow, seen(0), 1);
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  apply(flow, seen(1), 1);
  EXPECT_EQ(state_.status, FlowStatus::finished);
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false)->differences, IsEmpty());
}

TEST_P(FlowsVerify, FlowInCreationIsClean) {
  const FlowIds place = flows_->create(draft(2)).value();
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  const std::vector<Job> one{job(1)};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
}

TEST_P(FlowsVerify, IndexesAreRepaired) {
  start_flow();
  for (const char* key : {"mj:flows:active", "mj:flow-catalog"}) {
    backend_->erase(1, key);
    mends("flow-index");
  }
  backend_->run_command(1, {"HSET", "mj:flow:1", "state", "ended"});
  backend_->run_command(1, {"ZADD", "mj:flows:ended", "5", "1"});
  mends("flow-index");
}

TEST_P(FlowsVerify, MissingDueEntryIsRepaired) {
  start_flow();
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  backend_->erase(1, "mj:flows:due");
  mends("flow-due");
  EXPECT_THAT(due(), Contains(1U));
}

TEST_P(FlowsVerify, LostEndEventIsRaisedAgain) {
  const Id flow = start_flow();
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  backend_->erase(1, "mj:flow-events:1");
  mends("flow-event-missing");
  EXPECT_EQ(events(flow), "job job:12:1");
  backend_->erase(1, "mj:flow-events:1");
  backend_->put_text(1, "mj:flow-events:1", "x");
  EXPECT_THAT(violated_rules(), Contains("flow-journal"));
  ASSERT_TRUE(rebuild_flows(*flows_, *store_, 1, false));
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsVerify, ForgedCheckpointIsDropped) {
  start_flow();
  FlowPlan other = plan_;
  RunState forged = state_;
  forged.paused = true;
  backend_->run_command(1, {"HSET", "mj:flow-checkpoint:1", "text", checkpoint(plan_, forged)});
  mends("flow-checkpoint");
  backend_->run_command(1, {"HSET", "mj:flow-checkpoint:1", "at", "1", "text", "nonsense"});
  mends("flow-checkpoint");
}

TEST_P(FlowsVerify, OverwrittenRecordIsRepaired) {
  start_flow();
  backend_->run_command(1, {"HSET", "flow:1", "status", "finished"});
  mends("flow-record");
  backend_->run_command(1, {"HSET", "flow:1", "jobs", "[7]"});
  mends("flow-record");
  backend_->erase(1, "flow:1");
  mends("flow-record");
  EXPECT_EQ(field("flow:1", "caller_id"), "12");
}

TEST_P(FlowsVerify, PlannedJobOfAnUnknownFlowIsKept) {
  const Id flow = start_flow();
  for (const char* key : {"flow:1", "mj:flow:1", "mj:flow-journal:1", "mj:flow-checkpoint:1", "mj:flows:active"})
    backend_->erase(1, key);
  EXPECT_TRUE(read(flow).record.empty());
  EXPECT_THAT(violated_rules(), Contains("flow-orphan")) << texts_;
  const auto report = rebuild_flows(*flows_, *store_, 1, false);
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->is_complete);
  EXPECT_THAT(report->differences, Contains(HasSubstr("cannot be repaired")));
  EXPECT_EQ(state("job:12:2"), "planned");
  EXPECT_TRUE(store_->cancel(1, "job:12:2"));
  EXPECT_EQ(view("job:12:2").detail, "cancelled");
}

TEST_P(FlowsVerify, PlannedJobOfAnEndedFlowIsCancelled) {
  const Id flow = start_flow();
  backend_->run_command(1, {"HSET", "mj:claim:job:12:99", "state", "planned", "queue", "queue:python", "flow", "1 1"});
  backend_->run_command(1, {"HSET", "job:12:99", "id", "99", "caller_id", "12", "context_id", "1", "status",
                            "waiting_for_prerequisites"});
  EXPECT_THAT(violated_rules(), IsEmpty()) << "its flow is under way: " << texts_;
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  apply(flow, seen(0), 1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  apply(flow, seen(1), 1);
  ASSERT_EQ(state_.status, FlowStatus::finished);
  mends("flow-orphan");
  EXPECT_EQ(view("job:12:99").detail, "cancelled");
}

// In each state of the flow, the lost mark is restored, and the flow continues in that state.
TEST_P(FlowsVerify, LostMarkIsRebuilt) {
  const auto fields = [&] {
    std::map<std::string, std::string> out;
    const Reply reply = backend_->run_command(1, {"HGETALL", "mj:flow:1"});
    for (const auto& [name, value] : reply.fields()) {
      if (name != "taken" && name != "print") out[name] = value;
    }
    return out;
  };
  for (int step = 0; step < 4; ++step) {
    SetUp();
    if (step == 0) {
      new_flow(2);
    } else {
      const Id flow = start_flow();
      for (std::uint32_t node = 0; node + 1 < static_cast<std::uint32_t>(step); ++node) {
        ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
        read(flow);
        apply(flow, seen(node), 1);
      }
    }
    if (step == 0) backend_->run_command(1, {"HSET", "mj:definition:abc", "text", "{}"});
    const auto before = fields();
    const std::string planned = state("job:12:2");
    backend_->erase(1, "mj:flow:1");
    texts_.clear();
    if (step == 0) {
      EXPECT_THAT(violated_rules(), Contains("flow-definition")) << "the definition is invalid, and the jobs are kept";
      ASSERT_TRUE(rebuild_flows(*flows_, *store_, 1, false));
      EXPECT_EQ(state("job:12:2"), "planned");
      continue;
    }
    mends("flow-mark");
    auto after = fields();
    // Times in a record have a resolution of seconds, so the rebuilt values may differ.
    for (const char* name : {"created_ms", "ended_ms"}) EXPECT_EQ(after.contains(name), before.contains(name)) << name;
    for (const auto& [name, value] : before) {
      if (name.ends_with("_ms")) continue;
      EXPECT_EQ(after[name], value) << name << " at step " << step;
    }
    EXPECT_EQ(state("job:12:2"), planned);
  }
}

TEST_P(FlowsVerify, LostIdempotencyKeyIsRebuilt) {
  const auto plan = read_plan(nlohmann::json::parse(R"j({"name":"p","jobs":{"a":{"script":"1","type":"python"}}})j"));
  const FlowIds place = flows_->create(draft(1, "k", "asked")).value();
  const std::vector<Job> one{job(place.first_job)};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  Flow record = flow(place, "p");
  record.definition_hash = plan.plan->hash;
  record.jobs = {place.first_job};
  ASSERT_TRUE(flows_->put_flow(record, plan.plan->canonical));
  backend_->erase(1, "mj:flow-idempotency:12");
  mends("flow-index");
  EXPECT_EQ(flows_->create(draft(1, "k", "asked")).value().flow, place.flow);
  EXPECT_EQ(outcome(flows_->create(draft(1, "k", "other"))), "conflict");
}

TEST_P(FlowsVerify, CatalogOfANameIsRebuilt) {
  start_flow();
  backend_->erase(1, "mj:flow-catalog:p");
  mends("flow-index");
  EXPECT_EQ(flows_->list(1, "p", 0, 10).value().size(), 1U);
}

TEST_P(FlowsVerify, MalformedCatalogEntriesAreFoundAndRemoved) {
  start_flow();
  backend_->run_command(1, {"XADD", "mj:flow-catalog", "5-0", "x", "y"});
  backend_->run_command(1, {"XADD", "mj:flow-catalog", "6-0", "flow", "soon", "at", "1"});
  backend_->run_command(1, {"XADD", "mj:flow-catalog", "7-0", "flow", "77", "at", "1"});  // this flow does not exist
  backend_->run_command(1, {"XADD", "mj:flow-catalog", "8-0", "flow", "1", "at", "1"});   // a second entry for the flow
  std::vector<std::string> malformed;
  EXPECT_EQ(flows_->list(1, "", 0, 10, &malformed).value().size(), 3U);
  EXPECT_THAT(malformed, testing::UnorderedElementsAre("5-0", "6-0"));
  mends("flow-catalog");
  malformed.clear();
  EXPECT_EQ(flows_->list(1, "", 0, 10, &malformed).value().size(), 1U);
  EXPECT_THAT(malformed, IsEmpty());
}

TEST_P(FlowsVerify, UsersOfADefinitionAreRebuilt) {
  start_flow();
  const std::string users = "mj:definition-users:" + plan_.hash;
  backend_->erase(1, users);
  mends("flow-index");
  EXPECT_EQ(backend_->run_command(1, {"SISMEMBER", users, "flow:1"}).number(), 1U);
}

TEST_P(FlowsVerify, DefinitionWithLostUsersIsKept) {
  const Id first = start_flow();
  const std::string definition = flows_->definition(1, plan_.hash).value();
  const FlowIds place = flows_->create({1, 12, 0, "", ""}).value();
  Flow record = flow(place, "p");
  record.definition_hash = plan_.hash;
  ASSERT_TRUE(flows_->put_flow(record, definition));
  FlowCommit ended = commit(place.flow, 0);
  ended.ended = true;
  ASSERT_TRUE(flows_->commit(ended));
  backend_->erase(1, "mj:definition-users:" + plan_.hash);
  ASSERT_TRUE(flows_->remove(1, place.flow));
  EXPECT_TRUE(flows_->definition(1, plan_.hash)) << "flow " << first << " needs it";
}

TEST_P(FlowsVerify, ScheduleIndexIsRebuilt) {
  start_flow();
  Schedule nightly;
  nightly.name = "nightly";
  nightly.caller = 12;
  nightly.cron = "0 3 * * *";
  nightly.zone = "UTC";
  nightly.overlap = "skip";
  nightly.missed = "once";
  nightly.definition_hash = plan_.hash;
  nightly.next_start_ms = 1;
  ASSERT_TRUE(flows_->put_schedule(1, nightly, plan_.canonical, 0));
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  backend_->erase(1, "mj:schedules");
  mends("schedule-index");
  EXPECT_EQ(flows_->schedules(1).value().size(), 1U);
  backend_->run_command(1, {"SREM", "mj:definition-users:" + plan_.hash, "schedule:nightly"});
  mends("schedule-index");
  backend_->erase(1, "mj:schedule:nightly");
  EXPECT_THAT(violated_rules(), Contains("schedule-index")) << texts_;
  const auto report = rebuild_flows(*flows_, *store_, 1, false);
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->is_complete) << "the schedule is lost";
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
}

TEST_P(FlowsVerify, ActiveRunWithoutJournalUsesItsCheckpoint) {
  const Id flow = start_flow();
  backend_->erase(1, "mj:flow-journal:1");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(violated_rules(), testing::ElementsAre("flow-history")) << texts_;
    EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false)->differences, IsEmpty());
    EXPECT_EQ(field("flow:1", "status"), "started");
    if (i > 0) break;
    // The journal starts again after the checkpoint, so the checkpoint must be kept.
    ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
    read(flow);
    apply(flow, seen(0), 1);
  }
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  apply(flow, seen(1), 1);
  EXPECT_EQ(state_.status, FlowStatus::finished);
  EXPECT_THAT(violated_rules(), testing::ElementsAre("flow-history")) << texts_;
}

TEST_P(FlowsVerify, ActiveRunWithoutJournalAndCheckpointRestarts) {
  const Id flow = start_flow();
  for (const char* key : {"mj:flow-journal:1", "mj:flow-checkpoint:1"}) backend_->erase(1, key);
  texts_.clear();
  EXPECT_THAT(violated_rules(), Contains("flow-journal"));
  EXPECT_THAT(texts_, HasSubstr("flow start 1"));
  const auto report = rebuild_flows(*flows_, *store_, 1, false);
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->is_complete);
  texts_.clear();
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  EXPECT_EQ(field("flow:1", "status") + ' ' + field("flow:1", "detail"), "dispatched new");
  EXPECT_EQ(state("job:12:2"), "planned");
  // The flow starts again, but the job of its first node does not run a second time.
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  state_ = initial_state(plan_);
  read(flow);
  apply(flow, StartRun{"manual", 12}, 0);
  EXPECT_THAT(events(flow), HasSubstr("job job:12:1"));
  EXPECT_TRUE(claim().empty()) << "it has run";
}

TEST_P(FlowsVerify, EndedRunWithoutJournalStaysEnded) {
  const Id flow = start_flow();
  for (std::uint32_t node = 0; node < 2; ++node) {
    ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
    read(flow);
    apply(flow, seen(node), 1);
  }
  for (const char* key : {"mj:flow-journal:1", "mj:flow-checkpoint:1"}) backend_->erase(1, key);
  EXPECT_THAT(violated_rules(), testing::ElementsAre("flow-history")) << texts_;
  EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false)->differences, IsEmpty());
  EXPECT_EQ(field("flow:1", "status"), "finished");
  EXPECT_TRUE(flows_->remove(1, flow));
}

TEST_P(FlowsVerify, LostEventOfAChildIsRaisedAgain) {
  const auto plan = read_plan(nlohmann::json::parse(
      R"j({"name":"top","jobs":{"c":{"flow":{"name":"in","jobs":{"a":{"script":"1","type":"python"}}}}}})j"));
  plan_ = plan.plan.value();
  const FlowIds place = flows_->create(draft(1)).value();
  Job node = job(place.first_job);
  node.script_type = "flow";
  const std::vector<Job> one{node};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  Flow record = flow(place, "top");
  record.definition_hash = plan_.hash;
  record.jobs = {place.first_job};
  ASSERT_TRUE(flows_->put_flow(record, plan_.canonical));
  state_ = initial_state(plan_);
  apply(place.flow, StartRun{"manual", 12}, 0);
  const Id child = new_flow(1, "in");
  apply(place.flow, ChildStarted{0, child, ""}, 0);
  begin(child);
  texts_.clear();
  violated_rules();
  EXPECT_THAT(texts_, testing::Not(HasSubstr("flow:1 waits"))) << "it is under way";
  FlowCommit over = commit(child, 1);
  over.ended = true;
  over.parent = place.flow;
  ASSERT_TRUE(flows_->commit(over));
  const std::string event = "flow flow:" + std::to_string(child);
  ASSERT_EQ(events(place.flow), event);
  backend_->erase(1, "mj:flow-events:1");
  texts_.clear();
  EXPECT_THAT(violated_rules(), Contains("flow-event-missing"));
  EXPECT_THAT(texts_, HasSubstr("flow:1 waits for flow:" + std::to_string(child)));
  ASSERT_TRUE(rebuild_flows(*flows_, *store_, 1, false));
  EXPECT_EQ(events(place.flow), event);
}

TEST_P(FlowsVerify, IrreparableDamageIsReported) {
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"flow-definition", [&] { backend_->erase(1, "mj:definition:" + plan_.hash); }},
      {"flow-definition",
       [&] {
         backend_->run_command(1, {"HSET", "mj:definition:" + plan_.hash, "text", "{}"});
       }},
      {"flow-mark",
       [&] {
         backend_->erase(1, "mj:flow:1");
         backend_->erase(1, "flow:1");
       }},
      {"flow-mark",
       [&] {
         backend_->run_command(1, {"HSET", "mj:flow:1", "ids", "[1]"});
       }},
      {"flow-journal",
       [&] {
         backend_->run_command(1, {"XADD", "mj:flow-journal:1", "18446744073709551000-0", "x", "y"});
       }},
      {"flow-journal",
       [&] {
         backend_->run_command(1, {"XADD", "mj:flow-journal:1", "900-0", "x", "y"});
       }},
      {"flow-fact",
       [&] {
         backend_->run_command(1, {"XADD", "mj:flow-journal:1", "900-0", "f", "exploded", "at", "5"});
       }},
      {"flow-fact",
       [&] {
         backend_->run_command(
             1, {"XADD", "mj:flow-journal:1", "900-0", "f", "node_ready", "at", "5", "n", "0", "m", "{}"});
       }},
      {"flow-journal",
       [&] {
         backend_->erase(1, "mj:flow-journal:1");
         backend_->put_text(1, "mj:flow-journal:1", "x");
       }},
  };
  for (const auto& [rule, damage] : cases) {
    SetUp();
    start_flow();
    damage();
    texts_.clear();
    EXPECT_THAT(violated_rules(), Contains(rule)) << texts_;
    EXPECT_TRUE(rebuild_flows(*flows_, *store_, 1, false).has_value());
  }
}

TEST_P(FlowsVerify, JobRetriedByAnOperatorIsANote) {
  const Id flow = start_flow();
  JobEnd failed;
  failed.status = JobStatus::error;
  failed.detail = "exit";
  ASSERT_EQ(outcome(end(claim_one().ref, failed)), "ok");
  JobObserved bad = seen(0);
  bad.status = "error", bad.detail = "exit";
  read(flow);
  apply(flow, bad, 1);
  while (state_.status == FlowStatus::started) apply(flow, TimePassed{}, 0);
  EXPECT_THAT(violated_rules(), IsEmpty()) << texts_;
  ASSERT_TRUE(store_->requeue(1, "job:12:1"));
  EXPECT_THAT(violated_rules(), testing::ElementsAre("flow-job-rerun")) << texts_;
}

// A repair is based on earlier data. If the flow has changed since, the whole repair is refused.
TEST_P(FlowsVerify, RepairLeavesAChangedFlowUnchanged) {
  const Id id = start_flow();
  const FlowFix leave{FlowFix::Kind::remove_from_index, FlowFix::FlowIndex::active};
  for (const FlowRepair& wrong :
       {FlowRepair{state_.revision + 1, "active", {leave}}, FlowRepair{state_.revision, "new", {leave}}}) {
    EXPECT_EQ(outcome(flows_->repair(1, id, wrong)), "conflict");
    EXPECT_TRUE(flows_->read_index_entries(1, id).value().in_active_index);
  }
  EXPECT_EQ(outcome(flows_->repair(1, id, {state_.revision, "active", {leave}})), "ok");
  EXPECT_FALSE(flows_->read_index_entries(1, id).value().in_active_index);
}

MJ_BOTH_STORES(FlowsVerify);

}  // namespace
}  // namespace mycojobs
