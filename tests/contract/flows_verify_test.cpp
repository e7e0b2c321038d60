// What verify finds of flows when a store was damaged, and that a rebuild mends it.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "domain/flow_decide.h"
#include "flows_bench.h"
#include "inspect/flow_verify.h"

namespace mycojobs {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class FlowsVerify : public FlowContract {
 protected:
  // build -> test, and a flow of them that has begun: build is queued.
  Id begun() {
    const auto plan = read_plan(nlohmann::json::parse(
        R"j({"name":"p","jobs":{"build":{"script":"print(1)","type":"python"},"test":{"needs":["build"],"script":"print(2)","type":"python"}}})j"));
    plan_ = plan.plan.value();
    const FlowPlace place = flows_->create(draft(2)).value();
    std::vector<Job> jobs{job(place.first_job), job(place.first_job + 1)};
    EXPECT_TRUE(flows_->put_jobs(1, place.flow, jobs));
    Flow record = flow(place, "p");
    record.definition_hash = plan_.hash;
    record.jobs = {place.first_job, place.first_job + 1};
    EXPECT_TRUE(flows_->put_flow(record, plan_.canonical));
    state_ = fresh(plan_);
    apply(place.flow, StartRun{"manual", 12}, 0);
    return place.flow;
  }
  // One decision, committed as progress() does it.
  void apply(Id flow, decltype(FlowEvent::what) what, std::uint32_t taken) {
    FlowEvent event;
    event.now_ms = store_->now_ms().value();
    event.what = std::move(what);
    const auto decided = decide(plan_, state_, event);
    ASSERT_TRUE(decided) << decided.error().message;
    FlowCommit next = commit(flow, state_.revision, 0);
    next.facts = decided->facts;
    next.events_taken = taken;
    for (const Effect& effect : decided->effects) {
      const std::string key = "job:12:" + std::to_string(effect.node + 1);
      if (effect.kind == Effect::Kind::dispatch) next.dispatch.push_back({key, {}});
      if (effect.kind == Effect::Kind::fail)
        next.ends.push_back({key, {{"status", "error"}, {"detail", effect.detail}}});
    }
    state_ = decided->state;
    next.record = {{"status", std::string(word(state_.status))}, {"detail", state_.detail}, {"error", state_.error}};
    next.ended = state_.status == FlowStatus::finished || state_.status == FlowStatus::error;
    next.checkpoint = checkpoint(plan_, state_);
    const auto done = flows_->commit(next);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(*done, state_.revision);
  }
  JobSeen seen(std::uint32_t node) {
    JobSeen out;
    out.node = node;
    out.ended = true;
    out.status = "finished";
    out.detail = "ok";
    return out;
  }
  std::vector<std::string> rules() {
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
  // Finds it, mends it, and finds nothing then.
  void mends(const std::string& rule) {
    texts_.clear();
    EXPECT_THAT(rules(), Contains(rule)) << texts_;
    EXPECT_FALSE(rebuild_flows(*flows_, *store_, 1, true).value().empty()) << rule;
    EXPECT_THAT(rules(), Contains(rule)) << "a dry run mends nothing";
    EXPECT_FALSE(rebuild_flows(*flows_, *store_, 1, false).value().empty()) << rule;
    texts_.clear();
    EXPECT_THAT(rules(), IsEmpty()) << texts_;
    EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false).value(), IsEmpty()) << "twice is as good as once";
  }

  FlowPlan plan_;
  RunState state_;
  std::string texts_;
};

TEST_P(FlowsVerify, AFlowThatGoesItsWayIsClean) {
  const Id flow = begun();
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  read(flow);
  apply(flow, seen(0), 1);
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  read(flow);
  apply(flow, seen(1), 1);
  EXPECT_EQ(state_.status, FlowStatus::finished);
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  EXPECT_THAT(rebuild_flows(*flows_, *store_, 1, false).value(), IsEmpty());
}

TEST_P(FlowsVerify, AFlowThatIsBeingCreatedIsClean) {
  const FlowPlace place = flows_->create(draft(2)).value();
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  const std::vector<Job> one{job(1)};
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, one));
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
}

TEST_P(FlowsVerify, IndexesAreMended) {
  begun();
  for (const char* key : {"mj:flows:active", "mj:catalog"}) {
    bench_->erase(1, key);
    mends("flow-index");
  }
  bench_->plain(1, {"HSET", "mj:flow:1", "state", "ended"});
  bench_->plain(1, {"ZADD", "mj:flows:ended", "5", "1"});
  mends("flow-index");
}

TEST_P(FlowsVerify, AForgottenDueFlowIsMended) {
  begun();
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  bench_->erase(1, "mj:flows:due");
  mends("flow-due");
  EXPECT_THAT(due(), Contains(1U));
}

TEST_P(FlowsVerify, AnEndThatNobodyHearsOfIsHeardAgain) {
  const Id flow = begun();
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  bench_->erase(1, "mj:events:1");
  mends("flow-unheard");
  EXPECT_EQ(events(flow), "job job:12:1");
  bench_->erase(1, "mj:events:1");
  bench_->put_text(1, "mj:events:1", "x");
  EXPECT_THAT(rules(), Contains("flow-journal"));
  ASSERT_TRUE(rebuild_flows(*flows_, *store_, 1, false));
  EXPECT_EQ(events(flow), "job job:12:1");
}

TEST_P(FlowsVerify, AForgedCheckpointIsDropped) {
  begun();
  FlowPlan other = plan_;
  RunState forged = state_;
  forged.paused = true;
  bench_->plain(1, {"HSET", "mj:checkpoint:1", "text", checkpoint(plan_, forged)});
  mends("flow-checkpoint");
  bench_->plain(1, {"HSET", "mj:checkpoint:1", "at", "1", "text", "nonsense"});
  mends("flow-checkpoint");
}

TEST_P(FlowsVerify, AnOverwrittenRecordIsMended) {
  begun();
  bench_->plain(1, {"HSET", "flow:1", "status", "finished"});
  mends("flow-record");
  bench_->plain(1, {"HSET", "flow:1", "jobs", "[7]"});
  mends("flow-record");
  bench_->erase(1, "flow:1");
  mends("flow-record");
  EXPECT_EQ(field("flow:1", "caller_id"), "12");
}

TEST_P(FlowsVerify, APlannedJobOfAFlowThatIsGoneIsCancelled) {
  const Id flow = begun();
  for (const char* key : {"flow:1", "mj:flow:1", "mj:run:1", "mj:checkpoint:1", "mj:flows:active"})
    bench_->erase(1, key);
  EXPECT_TRUE(read(flow).record.empty());
  mends("flow-orphan");
  EXPECT_EQ(view("job:12:2").detail, "cancelled");
}

TEST_P(FlowsVerify, WhatCannotBeMendedIsReported) {
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"flow-definition", [&] { bench_->erase(1, "mj:definition:" + plan_.hash); }},
      {"flow-definition",
       [&] {
         bench_->plain(1, {"HSET", "mj:definition:" + plan_.hash, "text", "{}"});
       }},
      {"flow-mark", [&] { bench_->erase(1, "mj:flow:1"); }},
      {"flow-mark",
       [&] {
         bench_->plain(1, {"HSET", "mj:flow:1", "ids", "[1]"});
       }},
      {"flow-journal",
       [&] {
         bench_->plain(1, {"XADD", "mj:run:1", "18446744073709551000-0", "x", "y"});
       }},
      {"flow-journal",
       [&] {
         bench_->plain(1, {"XADD", "mj:run:1", "900-0", "x", "y"});
       }},
      {"flow-fact",
       [&] {
         bench_->plain(1, {"XADD", "mj:run:1", "900-0", "f", "exploded", "at", "5"});
       }},
      {"flow-fact",
       [&] {
         bench_->plain(1, {"XADD", "mj:run:1", "900-0", "f", "node_ready", "at", "5", "n", "0", "m", "{}"});
       }},
      {"flow-journal",
       [&] {
         bench_->erase(1, "mj:run:1");
         bench_->put_text(1, "mj:run:1", "x");
       }},
  };
  for (const auto& [rule, damage] : cases) {
    SetUp();
    begun();
    damage();
    texts_.clear();
    EXPECT_THAT(rules(), Contains(rule)) << texts_;
    EXPECT_TRUE(rebuild_flows(*flows_, *store_, 1, false).has_value());
  }
}

TEST_P(FlowsVerify, AJobThatAnOperatorRanAgainIsANote) {
  const Id flow = begun();
  JobEnd failed;
  failed.status = JobStatus::error;
  failed.detail = "exit";
  ASSERT_EQ(outcome(end(claim_one().ref, failed)), "ok");
  JobSeen bad = seen(0);
  bad.status = "error", bad.detail = "exit";
  read(flow);
  apply(flow, bad, 1);
  while (state_.status == FlowStatus::started) apply(flow, TimePassed{}, 0);
  EXPECT_THAT(rules(), IsEmpty()) << texts_;
  ASSERT_TRUE(store_->requeue(1, "job:12:1"));
  EXPECT_THAT(rules(), testing::ElementsAre("flow-job-again")) << texts_;
}

MJ_BOTH_STORES(FlowsVerify);

}  // namespace
}  // namespace mycojobs
