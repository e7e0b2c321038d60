// Recovery of a coordinator from stores that were cut off, changed by hand or partly lost.
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "progress_stage.h"

namespace mycojobs {
namespace {

class Recovery : public testing::Test {
 protected:
  // Creates and starts a flow; the client then disconnects.
  void begin(const std::string& name, const std::string& yaml) {
    stage_.request_run(name, yaml);
    stage_.client();
  }
  ProgressRequest recover() {
    ProgressRequest request;
    request.must_check_jobs = true;
    return request;
  }
  FlowControl control(FlowControl::Verb verb, std::string target = "") {
    FlowControl out;
    out.verb = verb;
    out.target = std::move(target);
    out.actor = 12;
    return out;
  }
  std::string queued() { return std::to_string(stage_.store().queue_length(1, "queue:python").value()); }
  FlowStage stage_;
};

constexpr const char* kTwo =
    "name: two\njobs: {a: {script: ok, type: python}, b: {needs: [a], script: ok, type: python}}\n";

std::string wide(int count) {
  std::string text = "name: wide\njobs:\n";
  for (int i = 0; i < count; ++i) text += "  n" + std::to_string(i) + ": {script: ok, type: python}\n";
  return text + "  last: {needs: [n0], script: ok, type: python}\n";
}

TEST_F(Recovery, CheckpointMayBeCurrentStaleOrLost) {
  begin("wide", wide(200));
  const auto text = [&] { return stage_.run_command({"HGET", "mj:flow-checkpoint:1", "text"}); };
  std::string stale, stale_at;
  for (int i = 0; i < 40 && stale.empty(); ++i) {
    stage_.run_jobs();
    stage_.coordinate();
    stale = text();
    stale_at = stage_.run_command({"HGET", "mj:flow-checkpoint:1", "at"});
  }
  ASSERT_NE(stale, "");
  const auto shown = [&] {
    const LoadedRun run = stage_.run("wide");
    return describe(*run.plan, run.state);
  };
  stage_.run_jobs();
  stage_.run_jobs();
  stage_.coordinate();
  const std::string current = shown();
  stage_.run_command({"HSET", "mj:flow-checkpoint:1", "text", stale, "at", stale_at});
  EXPECT_EQ(shown(), current);
  stage_.run_command({"HSET", "mj:flow-checkpoint:1", "text", "{\"format\":0}"});
  EXPECT_EQ(shown(), current);
  stage_.run_command({"HSET", "mj:flow-checkpoint:1", "text", stale, "at", std::to_string(std::stoul(stale_at) + 1)});
  EXPECT_EQ(shown(), current) << "the checkpoint has the wrong revision";
  stage_.run_command({"DEL", "mj:flow-checkpoint:1"});
  EXPECT_EQ(shown(), current);
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("wide", "status"), "finished");
}

TEST_F(Recovery, DispatchedJobThatTheStoreStillPlansIsQueued) {
  begin("two", kTwo);
  const std::string job = stage_.find_job_key("two", "a");
  stage_.run_command({"LREM", "queue:python", "0", job});
  stage_.run_command({"HSET", "mj:claim:" + job, "state", "planned"});
  ASSERT_EQ(queued(), "0");
  ASSERT_TRUE(stage_.progress_flow("two", recover()));
  EXPECT_EQ(queued(), "1");
  ASSERT_TRUE(stage_.progress_flow("two", recover()));
  EXPECT_EQ(queued(), "1") << "a second recovery";
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("two", "status"), "finished");
}

TEST_F(Recovery, StoredEndWithALostEventIsApplied) {
  begin("two", kTwo);
  stage_.run_jobs();
  stage_.run_jobs();
  stage_.run_command({"DEL", "mj:flow-events:1"});
  stage_.run_command({"DEL", "mj:flows:due"});
  ASSERT_EQ(stage_.describe_node("two", "a"), "dispatched queued");
  // A starting coordinator checks every active flow.
  stage_.coordinate();
  EXPECT_EQ(stage_.describe_node("two", "a"), "completed ok");
  EXPECT_EQ(stage_.describe_node("two", "b"), "dispatched queued");
}

TEST_F(Recovery, FlowWithoutItsDefinitionDelaysNoOther) {
  begin("lost", "name: lost\njobs: {a: {script: ok, type: python}, b: {needs: [a], script: ok, type: python}}\n");
  begin("two", kTwo);
  const std::string hash = stage_.field("lost", "definition_hash");
  const std::string text = stage_.run_command({"HGET", "mj:definition:" + hash, "text"});
  stage_.run_command({"DEL", "mj:definition:" + hash});
  for (int i = 0; i < 20; ++i) {
    stage_.coordinate();
    stage_.run_jobs();
    stage_.clock().now += 20;
  }
  EXPECT_EQ(stage_.field("two", "status"), "finished");
  EXPECT_EQ(stage_.field("lost", "status"), "started");
  const auto asked = stage_.progress_flow("lost");
  ASSERT_FALSE(asked);
  EXPECT_EQ(asked.error().code, Code::invalid);
  EXPECT_NE(asked.error().message.find("is missing: create a flow with the same definition"), std::string::npos)
      << asked.error().message;
  // A different definition under the same hash is not accepted.
  stage_.run_command({"HSET", "mj:definition:" + hash, "text", R"({"name":"x","jobs":{"a":{"log":"x"}}})"});
  EXPECT_EQ(stage_.progress_flow("lost").error().code, Code::invalid);
  stage_.run_command({"HSET", "mj:definition:" + hash, "text", text});
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("lost", "status"), "finished");
}

TEST_F(Recovery, NodeWithADeletedJobFailsWithTheReason) {
  begin("two", kTwo);
  stage_.run_command({"DEL", stage_.find_job_key("two", "b")});
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("two", "status"), "error");
  EXPECT_NE(stage_.field("two", "error").find("record"), std::string::npos) << stage_.field("two", "error");
  begin("again", kTwo);
  const std::string job = stage_.find_job_key("again", "a");
  stage_.run_command({"DEL", job});
  stage_.run_command({"DEL", "mj:claim:" + job});
  stage_.run_command({"DEL", "queue:python"});
  ASSERT_TRUE(stage_.progress_flow("again", recover()));
  EXPECT_EQ(stage_.field("again", "status"), "error") << stage_.describe_node("again", "a");
}

TEST_F(Recovery, ReplayWithIrreversibleNodesNeedsPermission) {
  begin("once",
        "name: once\njobs: {pay: {script: ok, type: python, irreversible: true}, b: {needs: [pay], script: fail, type: "
        "python}}\n");
  const auto replay = [&](bool allowed) { return replay_flow(stage_.flows(), stage_.run("once"), {allowed}); };
  stage_.run_jobs();
  stage_.run_jobs();  // the job has ended, and no coordinator has applied the end
  ASSERT_EQ(stage_.describe_node("once", "pay"), "dispatched queued");
  const auto refused = replay(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  EXPECT_NE(refused.error().message.find("pay"), std::string::npos);
  EXPECT_TRUE(stage_.play());
  EXPECT_FALSE(replay(false));
  const auto allowed = replay(true);
  ASSERT_TRUE(allowed) << allowed.error().message;
  EXPECT_NE(allowed->id, 1U);
  EXPECT_EQ(allowed->definition_hash, stage_.field("once", "definition_hash"));
}

// A child flow that cannot be created fails its node, and other flows of the context continue.
TEST_F(Recovery, ChildFlowWithAnUnusableUploadFailsItsNode) {
  const std::string hash(64, 'b');
  UploadRecord foreign;
  foreign.caller = 999;
  foreign.reference = {make_upload_id(999, std::string(32, '1')), 5, hash};
  ASSERT_TRUE(stage_.store().begin_upload(1, foreign, 60000, 1U << 30));
  ASSERT_TRUE(stage_.store().complete_upload(1, foreign.reference.id, 60000));
  UploadReference missing = foreign.reference;
  missing.id = make_upload_id(999, std::string(32, '2'));
  const auto begin_parent = [this](const std::string& name, const UploadReference& reference) {
    begin(name, "name: " + name +
                    "\njobs: {c: {flow: {name: child, jobs: {x: {script: ok, type: python, files: {data: {" +
                    "upload: \"" + to_string(reference) + "\"}}}}}}}\n");
  };
  begin_parent("foreign", foreign.reference);
  begin_parent("missing", missing);
  begin("two", kTwo);
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("foreign", "status"), "error");
  EXPECT_NE(stage_.field("foreign", "error").find("belongs to another caller"), std::string::npos)
      << stage_.field("foreign", "error");
  EXPECT_EQ(stage_.field("missing", "status"), "error");
  EXPECT_NE(stage_.field("missing", "error").find("does not exist or has expired"), std::string::npos)
      << stage_.field("missing", "error");
  EXPECT_EQ(stage_.field("two", "status"), "finished");
}

// The irreversible node is two child flows below; the node "after" then fails.
constexpr const char* kGrandparent =
    "name: top\njobs: {c: {flow: {name: middle, jobs: {m: {flow: {name: inner, jobs: {pay: {script: ok, type: python, "
    "irreversible: true}}}}}}}, after: {needs: [c], script: fail, type: python}}\n";

TEST_F(Recovery, ReplayRejectsIrreversibleNodesOfChildFlows) {
  begin("top", kGrandparent);
  const auto replay = [&](bool allowed) { return replay_flow(stage_.flows(), stage_.run("top"), {allowed}); };
  const auto before = replay(false);
  EXPECT_TRUE(before) << before.error().message;
  EXPECT_TRUE(stage_.play());
  ASSERT_EQ(stage_.field("top", "status"), "error");
  const auto refused = replay(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  for (const char* part : {"node c: flow ", "node m: flow ", "node pay is irreversible", "--allow-irreversible"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  EXPECT_TRUE(replay(true));
}

TEST_F(Recovery, ReplayCountsADeletedChildAsCompleted) {
  begin("top", kGrandparent);
  EXPECT_TRUE(stage_.play());
  ASSERT_EQ(stage_.field("top", "status"), "error");
  ASSERT_TRUE(stage_.flows().remove(1, 3));
  const auto refused = replay_flow(stage_.flows(), stage_.run("top"), {false});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("flow 3 was deleted"), std::string::npos) << refused.error().message;
}

TEST_F(Recovery, ReplayReadsChildrenOfEarlierAttempts) {
  begin("retried",
        "name: retried\njobs: {c: {flow: {name: inner, jobs: {pay: {script: ok, type: python, irreversible: true}, x: "
        "{needs: [pay], script: fail, type: python}}}}}\n");
  EXPECT_TRUE(stage_.play());
  ASSERT_EQ(stage_.field("retried", "status"), "error");
  ProgressRequest request;
  request.control = control(FlowControl::Verb::retry);
  ASSERT_TRUE(stage_.progress_flow("retried", request));
  ASSERT_GT(stage_.run("retried").state.nodes.at(0).runs, 1U);
  // The second child has not reached the irreversible node.
  const auto refused = replay_flow(stage_.flows(), stage_.run("retried"), {false});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("flow 2: node pay"), std::string::npos) << refused.error().message;
}

constexpr const char* kChildThatPays =
    "name: paying\njobs: {c: {flow: {name: inner, jobs: {pay: {script: ok, type: python, irreversible: true}, x: "
    "{needs: [pay], script: fail, type: python}}}}}\n";

TEST_F(Recovery, RetryRejectsRepeatingAnIrreversibleChildNode) {
  begin("paying", kChildThatPays);
  EXPECT_TRUE(check_retry(stage_.flows(), stage_.run("paying"))) << "no node has failed";
  EXPECT_TRUE(stage_.play());
  ASSERT_EQ(stage_.field("paying", "status"), "error");
  const auto refused = check_retry(stage_.flows(), stage_.run("paying"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  for (const char* part : {"node c: flow 2: node pay is irreversible", "--allow-irreversible", "new child flow"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
}

TEST_F(Recovery, RetryCountsADeletedChildAsCompleted) {
  begin("paying", kChildThatPays);
  EXPECT_TRUE(stage_.play());
  ASSERT_TRUE(stage_.flows().remove(1, 2));
  const auto refused = check_retry(stage_.flows(), stage_.run("paying"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("flow 2 was deleted"), std::string::npos) << refused.error().message;
}

TEST_F(Recovery, RetryIgnoresChildrenThatItDoesNotRestart) {
  begin("top", kGrandparent);
  EXPECT_TRUE(stage_.play());
  ASSERT_EQ(stage_.field("top", "status"), "error");
  const auto allowed = check_retry(stage_.flows(), stage_.run("top"));
  EXPECT_TRUE(allowed) << "the child has completed: " << allowed.error().message;
}

constexpr const char* kParent =
    "name: parent\njobs: {c: {flow: {name: inner, jobs: {x: {script: hold, type: python}}}}, d: {needs: [c], script: "
    "ok, type: python}}\n";

TEST_F(Recovery, LinkToAMissingChildFailsItsNode) {
  begin("parent", kParent);
  stage_.run_jobs();
  for (const char* key : {"flow:2", "mj:flow:2", "mj:flow-journal:2"}) stage_.run_command({"DEL", key});
  stage_.cache.clear_runs();
  ASSERT_TRUE(stage_.progress_flow("parent", recover()));
  EXPECT_EQ(stage_.describe_node("parent", "c"), "failed flow_failed");
  EXPECT_NE(stage_.field("parent", "error").find("flow 2"), std::string::npos) << stage_.field("parent", "error");
}

TEST_F(Recovery, ChildOfAnEndedParentIsCancelled) {
  begin("parent", kParent);
  stage_.run_jobs();
  stage_.run_command({"HSET", "flow:1", "status", "error"});  // as after the restore of an old backup
  ProgressRequest request = recover();
  request.context = 1;
  request.flow = 2;
  ASSERT_TRUE(advance_run(stage_.flows(), stage_.cache, request));
  stage_.run_jobs();
  ASSERT_TRUE(advance_run(stage_.flows(), stage_.cache, request));
  EXPECT_EQ(stage_.run_command({"HGET", "flow:2", "detail"}), "cancelled");
}

TEST_F(Recovery, UnstartedChildOfAnEndedParentIsNotStarted) {
  begin("parent", kParent);
  const Id child =
      create_flow(stage_.flows(), plan_of_yaml("name: c\njobs: {a: {log: x}}\n"), NewFlow{1, 12, {}, "", "flow:1 c"})
          .value()
          .id;
  stage_.run_command({"HSET", "flow:1", "status", "error"});
  ProgressRequest request;
  request.context = 1;
  request.flow = child;
  request.start = StartRun{"manual", 12};
  const auto begun = advance_run(stage_.flows(), stage_.cache, request);
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, Code::conflict);
}

TEST_F(Recovery, ChildWithAForeignKeyFailsItsNode) {
  NewFlow other;
  other.context = 1;
  other.caller = 12;
  other.idempotency_key = "child:2:c";
  ASSERT_TRUE(create_flow(stage_.flows(), plan_of_yaml("name: o\njobs: {a: {log: x}}\n"), other));
  begin("parent", kParent);
  ASSERT_EQ(stage_.flow("parent"), 2U);
  EXPECT_EQ(stage_.describe_node("parent", "c"), "failed flow_failed");
  EXPECT_NE(stage_.field("parent", "error").find("idempotency_key"), std::string::npos)
      << stage_.field("parent", "error");
}

TEST_F(Recovery, RestartKeepsPausesAndTheirDeadlines) {
  begin("paused", kTwo);
  begin("waits", "name: waits\njobs: {w: {wait: 10s}, a: {needs: [w], script: ok, type: python}}\n");
  ProgressRequest pause;
  pause.control = control(FlowControl::Verb::pause);
  ASSERT_TRUE(stage_.progress_flow("paused", pause));
  for (int i = 0; i < 5; ++i) {
    stage_.restart_coordinator();
    stage_.clock().now += 1100;
    stage_.coordinate(3);
    stage_.run_jobs();
  }
  EXPECT_EQ(stage_.describe_node("paused", "a"), "completed ok");
  EXPECT_EQ(stage_.describe_node("paused", "b"), "ready ");
  EXPECT_EQ(stage_.describe_node("waits", "w"), "dispatched wait");
  stage_.clock().now += 5000;
  stage_.restart_coordinator();
  stage_.clock().now += 1100;
  stage_.coordinate(3);
  EXPECT_EQ(stage_.describe_node("waits", "w"), "completed ok");
  ProgressRequest resume;
  resume.control = control(FlowControl::Verb::resume);
  ASSERT_TRUE(stage_.progress_flow("paused", resume));
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("paused", "status"), "finished");
  EXPECT_EQ(stage_.field("waits", "status"), "finished");
}

TEST_F(Recovery, EmptyEventsAndInvalidFactsAreSkipped) {
  begin("two", kTwo);
  for (const char* event : {"", "job", "job job:12:999", "job nonsense", "flow flow:0", "flow flow:77", "x y"}) {
    stage_.run_command({"RPUSH", "mj:flow-events:1", event});
  }
  ASSERT_TRUE(stage_.flows().mark_due(1, 1));
  EXPECT_TRUE(stage_.play());
  EXPECT_EQ(stage_.field("two", "status"), "finished");
}

TEST_F(Recovery, RecordContainsResultsAndNodesOfAnySize) {
  begin("wide", wide(150));
  auto nodes = decode<Flow>(stage_.record("wide")).record.nodes;
  ASSERT_EQ(nodes.size(), 151U);
  EXPECT_TRUE(stage_.play());
  nodes = decode<Flow>(stage_.record("wide")).record.nodes;
  for (const FlowNode& node : nodes) EXPECT_EQ(node.node_status, NodeStatus::completed) << node.name;
}

}  // namespace
}  // namespace mycojobs
