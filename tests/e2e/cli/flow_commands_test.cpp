// The flow commands with a real Redis, an agent and a coordinator.
#include <csignal>
#include <thread>

#include "e2e/client.h"
#include "inspect/flow_view.h"

namespace mycojobs::test {
namespace {

class FlowCommands : public Operator {
 protected:
  std::string write_flow(const std::string& text) { return folder_.write("flow.yaml", text); }
  // Starts an agent and a coordinator, and waits until the coordinator is the leader of context 1.
  void start_programs() {
    coordinators_.emplace_back(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--context", "1",
                                          "--state-dir", folder_ / "coordinator"});
    agents_.push_back(start_registered_agent(20));
    EXPECT_TRUE(eventually([&] { return is_leader(); })) << coordinators_.back().err();
  }
  bool is_leader() { return coordinators_.back().err().find("acquired leadership") != std::string::npos; }
  std::string start_flow(const std::string& yaml, std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.begin(), {"flow", "start", write_flow(yaml), "--detach"});
    ProcessResult command_result = mycojobs_(more_options);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    EXPECT_TRUE(command_result.out.starts_with("flow:")) << command_result.out;
    return command_result.out.substr(5, command_result.out.find('\n') - 5);
  }
  std::string read_detail(const std::string& flow) {
    return mycojobs_.run_json({"flow", "show", flow}).value("detail", "");
  }
  std::string read_node_state(const std::string& flow, const std::string& name) {
    const auto flow_output = mycojobs_.run_json({"flow", "show", flow});
    for (const auto& flow_node : flow_output["nodes"]) {
      if (flow_node["name"] == name)
        return flow_node["node_status"].get<std::string>() + " " + flow_node.value("detail", "");
    }
    return "absent";
  }
  bool wait_for_detail(const std::string& flow, const std::string& expected) {
    return eventually([&] { return read_detail(flow) == expected; });
  }
  void expect_cause(const std::string& flow, const std::string& cause, const std::string& words) {
    EXPECT_TRUE(eventually([&] {
      const ProcessResult output = mycojobs_({"flow", "explain", flow});
      return output.out.find(cause + "\n") != std::string::npos && output.out.find(words) != std::string::npos;
    })) << mycojobs_({"flow", "explain", flow}).out;
  }

  std::vector<Process> coordinators_, agents_;
};

constexpr const char* kPipeline = R"(
name: pipeline
jobs:
  build: {script: "result['n'] = 7", type: python}
  ok: {needs: [build], approval: {approvers: [12]}}
  gate: {needs: [ok], script: "pass", type: python, prerequisites: ["signal:go"]}
  hold: {needs: [gate], pause: "look"}
  said: {needs: [hold], log: "done"}
)";

TEST_F(FlowCommands, InvalidDefinitionIsReportedCompletely) {
  const std::string file =
      write_flow("name: x\njobs:\n  a: {needs: [b], script: pass, type: python}\n  c: {file: gone.py}\n");
  const ProcessResult check_result = mycojobs_({"flow", "check", file});
  expect_result(check_result, 65, ":3:15: jobs.a.needs[0]: there is no node \"b\"");
  expect_result(check_result, 65, "jobs.c.file: ");
  EXPECT_FALSE(mycojobs_.run_json({"flow", "check", file})["ok"].get<bool>());
  expect_result(mycojobs_({"flow", "start", file}), 65, "jobs.a.needs[0]");
  expect_result(mycojobs_({"flow", "check", folder_ / "gone.yaml"}), 66, "no such file");
  expect_result(mycojobs_({"flow", "start", "abc"}), 66, "no such file");
  expect_result(mycojobs_({"flow", "show", "abc"}), 65, "is not a flow");
  expect_result(mycojobs_({"flow", "show", "77"}), 66, "flow 77 is unknown in context 1");
  expect_result(mycojobs_({"flow", "cancel", "77"}), 66, "does not exist in context 1");
  expect_result(mycojobs_({"flow", "list", "--status", "odd"}), 65, "--status");
  expect_result(mycojobs_({"flow", "graph", file, "--format", "png"}), 65, "--format");
}

// The example of docs/flows.md: the result of its check and of its run.
TEST_F(FlowCommands, JoinAfterAHandledFailureIsSkippedAndReported) {
  const std::string file = write_flow(R"yaml(
name: import
defaults: {type: python}
jobs:
  fetch:  {script: "raise OSError('the source is away')", on_error: cached}
  cached: {script: "result['rows'] = 3"}
  report: {needs: fetch, script: "print('fresh rows')"}
  always: {needs: [fetch, cached], script: "print('fresh or cached rows')"}
)yaml");
  const ProcessResult check_result = mycojobs_({"flow", "check", file});
  expect_result(check_result, 0, "flow.yaml:7:");
  expect_result(check_result, 0, "jobs.report.needs: if fetch fails and cached handles that, report is skipped");
  EXPECT_EQ(check_result.err.find("always is skipped"), std::string::npos) << check_result.err;
  EXPECT_EQ(mycojobs_.run_json({"flow", "check", file})["warnings"].size(), 1U);
  start_programs();
  expect_result(mycojobs_({"flow", "start", file, "--follow"}), 0, "flow 1 completed, 1 node skipped");
  EXPECT_EQ(read_node_state("1", "report"), "cancelled skipped");
  EXPECT_EQ(read_node_state("1", "always"), "completed ok");
}

// A client with only redis-cli writes two jobs and a flow. Both jobs receive the flow's variables; a job's own
// variables take precedence.
TEST_F(FlowCommands, FlowWrittenWithRedisCliRunsWithItsVariables) {
  start_programs();
  const std::string script = "import os\nresult = {'region': os.environ['REGION'], 'own': os.environ['OWN']}";
  for (const std::string id : {"2001", "2002"}) {
    redis_.cli(1, {"HSET", "job:12:" + id, "id", id, "caller_id", "12", "context_id", "1", "script", script,
                   "script_type", "python", "status", "dispatched"});
  }
  redis_.cli(1, {"HSET", "job:12:2002", "dependends", "[2001]", "env_vars", R"({"OWN":"of the job"})"});
  redis_.cli(1, {"HSET", "flow:33", "id", "33", "caller_id", "12", "context_id", "1", "jobs", "[2001,2002]", "env_vars",
                 R"({"REGION":"eu","OWN":"of the flow"})", "status", "dispatched"});
  expect_result(mycojobs_({"flow", "start", "33", "--follow"}), 0, "completed");
  const auto result = [this](const std::string& job) {
    return nlohmann::json::parse(redis_.cli(1, {"HGET", job, "result"}), nullptr, false);
  };
  EXPECT_EQ(result("job:12:2001"), (nlohmann::json{{"region", "eu"}, {"own", "of the flow"}}));
  EXPECT_EQ(result("job:12:2002"), (nlohmann::json{{"region", "eu"}, {"own", "of the job"}}));
}

TEST_F(FlowCommands, ListContinuesAfterItsLastRow) {
  start_programs();
  for (int i = 0; i < 5; ++i) start_flow("name: one\njobs:\n  a: {type: python, script: pass}\n");
  std::vector<std::string> listed_flows;
  std::string last_flow;
  for (int pages = 0; pages < 3; ++pages) {
    std::vector<std::string> words{"flow", "list", "--limit", "2", "--json"};
    if (!last_flow.empty()) words.insert(words.end(), {"--after", last_flow});
    const ProcessResult command_result = mycojobs_(words);
    const auto rows = nlohmann::json::parse(command_result.out, nullptr, false);
    ASSERT_TRUE(rows.is_array()) << command_result.out << command_result.err;
    for (const auto& row : rows) listed_flows.push_back(row["flow"].dump());
    last_flow = listed_flows.back();
    EXPECT_EQ(command_result.err.find("there are more: continue with --after " + last_flow) != std::string::npos,
              pages < 2)
        << command_result.err;
  }
  EXPECT_EQ(listed_flows, (std::vector<std::string>{"5", "4", "3", "2", "1"}));
}

TEST_F(FlowCommands, ScriptFilesAreReadRelativeToTheFile) {
  folder_.write("build.py", "pass");
  const std::string file =
      write_flow("name: files\njobs:\n  build: {file: build.py}\n  test: {needs: [build], file: build.py}\n");
  expect_result(mycojobs_({"flow", "check", file}), 0, "files: 2 nodes");
  expect_result(mycojobs_({"flow", "graph", file}), 0, "→ test");
  expect_result(mycojobs_({"flow", "graph", file, "--format", "ascii"}), 0, "-> test");
  expect_result(mycojobs_({"flow", "graph", file, "--format", "mermaid"}), 0, "n0 --> n1");
}

TEST_F(FlowCommands, MissingCoordinatorIsReported) {
  write_flow(kPipeline);
  const ProcessResult started = mycojobs_({"flow", "start", folder_ / "flow.yaml", "--detach"});
  expect_result(started, 0, "no coordinator leads context 1");
  expect_cause("1", "coordinator_missing", "`mycojobs coordinator --redis URL --context 1`");
  expect_cause("1", "no_runner", "no runner serves queue:python");
  const ProcessResult planned_job =
      mycojobs_({"job", "explain", mycojobs_.run_json({"flow", "show", "1"})["nodes"][1]["job"]});
  expect_result(planned_job, 0, "flow explain 1");
}

TEST_F(FlowCommands, ListAndShowReportTheSameStatus) {
  start_programs();
  const std::string flow = start_flow("name: ap\njobs:\n  ship: {approval: \"ok?\"}\n  more: {pause: look}\n");
  ASSERT_TRUE(wait_for_detail(flow, "waiting"));
  expect_result(mycojobs_({"flow", "list"}), 0, "waiting");
  EXPECT_EQ(mycojobs_.run_json({"flow", "list", "--status", "waiting"}).at(0).value("detail", ""), "waiting");
  EXPECT_EQ(mycojobs_.run_json({"flow", "list", "--status", "started"}).size(), 1U)
      << "the record has the status \"started\"";
  EXPECT_TRUE(mycojobs_.run_json({"flow", "list", "--status", "running"}).empty());
  for (const FlowDisplayState& row : flow_display_states())
    EXPECT_EQ(mycojobs_({"flow", "list", "--status", std::string(row.state)}).code, 0) << row.state;
  expect_result(mycojobs_({"flow", "approve", flow, "ship"}), 0, "has the approval (waiting)");
}

TEST_F(FlowCommands, ManualFlowRunsStepByStep) {
  start_programs();
  const std::string flow = start_flow(kPipeline, {"--key", "one"});
  EXPECT_EQ(start_flow(kPipeline, {"--key", "one"}), flow)
      << "a second start with the same key must return the same flow";
  expect_cause(flow, "approval", "`mycojobs flow approve " + flow + " ok --actor ID`");
  expect_result(mycojobs_({"flow", "result", flow}), 75, "has not ended");
  expect_result(mycojobs_({"flow", "approve", flow, "ok"}), 77, "not an approver of node ok");
  expect_result(mycojobs_({"flow", "approve", flow, "ok", "--actor", "12", "--comment", "ship it", "--key", "k"}), 0,
                "has the approval");
  expect_result(mycojobs_({"flow", "approve", flow, "ok", "--actor", "12", "--comment", "ship it", "--key", "k"}), 0,
                "the same request was made before");
  expect_result(mycojobs_({"flow", "cancel", flow, "--key", "k", "--actor", "12"}), 65, "key");
  expect_cause(flow, "signal", "waits for signal:go");
  expect_result(mycojobs_({"flow", "signal", flow, "go", "--payload", "{"}), 65, "--payload: ");
  expect_result(mycojobs_({"flow", "pause", flow, "--comment", std::string(4097, 'x')}), 65, "--comment: is over 4096");
  expect_result(mycojobs_({"flow", "pause", flow, "--key", ""}), 65, "--key: is empty");
  expect_result(mycojobs_({"flow", "pause", flow, "--comment", "lunch"}), 0, "is paused");
  expect_cause(flow, "paused", "paused by 1 since");
  expect_result(mycojobs_({"flow", "resume", flow}), 0, "is resumed");
  expect_result(mycojobs_({"flow", "signal", flow, "go", "--payload", "{\"pin\": 4711}"}), 0, "has the signal");
  expect_cause(flow, "pause", "`mycojobs flow resume " + flow + " hold`");
  expect_result(mycojobs_({"flow", "resume", flow, "hold"}), 0, "is resumed");
  EXPECT_TRUE(wait_for_detail(flow, "completed"));
  expect_cause(flow, "finished", "has finished");
  expect_result(mycojobs_({"flow", "timeline", flow}), 0, "approved ok by 12: ship it");
  const ProcessResult journal = mycojobs_({"flow", "journal", flow, "--follow"});
  expect_result(journal, 0, "node_completed");
  EXPECT_EQ(journal.out.find("4711"), std::string::npos) << "the payload of a signal must not be shown";
  expect_result(mycojobs_({"flow", "result", flow}), 0, "ok.actor = 12");
  expect_result(mycojobs_({"flow", "inspect", flow}), 0, "terminal");
  expect_result(mycojobs_({"flow", "pause", flow}), 65, "ended");
  EXPECT_EQ(mycojobs_.run_json({"flow", "list"})[0]["status"], "finished");
  expect_result(mycojobs_({"flow", "delete", flow}), 0, "is deleted");
  expect_result(mycojobs_({"flow", "show", flow}), 66, "is unknown in context 1");
}

TEST_F(FlowCommands, FailureIsExplainedRetriedAndReplayed) {
  start_programs();
  const std::string flow = start_flow(R"(
name: breaks
jobs:
  a: {script: "1/0", type: python}
  b: {needs: [a], script: "pass", type: python}
)");
  EXPECT_TRUE(wait_for_detail(flow, "failed"));
  expect_cause(flow, "node_failed", "ZeroDivisionError");
  EXPECT_EQ(read_node_state(flow, "b"), "failed dependency_failed");
  expect_result(mycojobs_({"flow", "result", flow}), 1, "ZeroDivisionError");
  expect_result(mycojobs_({"flow", "retry", flow}), 0, "tries again");
  EXPECT_TRUE(eventually([&] {
    const auto nodes = mycojobs_.run_json({"flow", "show", flow})["nodes"];
    return read_detail(flow) == "failed" && nodes[0].value("attempt", 0) == 2;
  }));
  const ProcessResult replay_result = mycojobs_({"flow", "replay", flow});
  expect_result(replay_result, 0, "flow:");
  EXPECT_NE(replay_result.out, "flow:" + flow + "\n");
}

TEST_F(FlowCommands, FollowedFlowShowsChangesAndItsExitCode) {
  start_programs();
  write_flow("name: quick\njobs:\n  a: {script: \"pass\", type: python}\n  b: {needs: [a], log: hello}\n");
  const ProcessResult followed = mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"});
  expect_result(followed, 0, "a  completed");
  expect_result(followed, 0, "flow 1 completed");
  EXPECT_EQ(followed.err.find("finished"), std::string::npos) << "nodes end as completed, not as finished";
  write_flow("name: bad\njobs:\n  a: {script: \"1/0\", type: python}\n");
  expect_result(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"}), 1, "error: ");
  const auto document = mycojobs_.run_json({"flow", "start", folder_ / "flow.yaml", "--follow"});
  EXPECT_EQ(document["status"], "error");
  EXPECT_EQ(document["nodes"][0]["name"], "a");
}

TEST_F(FlowCommands, UnfollowedFlowContinues) {
  start_programs();
  write_flow("name: long\njobs:\n  a: {script: \"import time; time.sleep(600)\", type: python}\n");
  Process follower(folder_, mycojobs_.make_argv({"flow", "start", folder_ / "flow.yaml", "--follow"}));
  EXPECT_TRUE(eventually([&] { return follower.err().find("a  running") != std::string::npos; })) << follower.err();
  follower.signal(SIGINT);
  const ProcessResult interrupted_result = follower.wait();
  expect_result(interrupted_result, 130, "`mycojobs flow watch 1` shows it again");
  EXPECT_EQ(read_detail("1"), "running");
  expect_cause("1", "running", "lease of runner 20 expires in");
  Process watcher(folder_, mycojobs_.make_argv({"flow", "watch", "1"}));
  EXPECT_TRUE(eventually([&] { return watcher.out().find("  running  ") != std::string::npos; }));
  expect_result(mycojobs_({"flow", "cancel", "1"}), 0, "is being cancelled");
  EXPECT_EQ(watcher.wait().code, 130);
  expect_cause("1", "cancelled", "it was cancelled by 1");
}

TEST_F(FlowCommands, InterruptedWatchIsReported) {
  start_programs();
  const std::string flow = start_flow("name: long\njobs:\n  a: {pause: \"ask nobody\"}\n");
  for (const auto& words : {std::vector<std::string>{"flow", "watch", flow},
                            {"flow", "journal", flow, "--follow"},
                            {"flow", "logs", flow, "--follow"}}) {
    Process watcher(folder_, mycojobs_.make_argv(words));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    watcher.signal(SIGINT);
    EXPECT_EQ(watcher.wait().code, 130) << words[1];
  }
  const std::string flow_output = mycojobs_({"flow", "show", flow}).out;
  EXPECT_NE(flow_output.find("a asks: ask nobody"), std::string::npos) << flow_output;
}

TEST_F(FlowCommands, LogsOfAllNodesAndAttemptsAreInOrder) {
  start_programs();
  const std::string flow = start_flow(R"yaml(
name: talks
jobs:
  z: {type: python, script: "print('first')\nprint('two', end='')"}
  b: {needs: z, type: python, retries: 1, script: "import os\nprint('attempt', os.environ['MYCOJOBS_ATTEMPT'])\nassert os.environ['MYCOJOBS_ATTEMPT'] > '1'"}
  a: {needs: b, log: "all said"}
  kid: {needs: a, flow: {name: kid, jobs: {x: {log: hi}}}}
)yaml");
  const ProcessResult followed = mycojobs_({"flow", "logs", flow, "--follow"});
  EXPECT_EQ(followed.code, 0) << followed.err;
  const auto find_position = [&](const std::string& text) { return followed.out.find(text); };
  ASSERT_NE(find_position("z | first\n"), std::string::npos) << followed.out;
  EXPECT_LT(find_position("z | first\n"), find_position("z | two\n"));
  EXPECT_LT(find_position("z | two\n"), find_position("b | attempt 1\n"));
  EXPECT_NE(find_position("b | AssertionError"), std::string::npos) << followed.out;
  EXPECT_LT(find_position("b | attempt 1\n"), find_position("b | attempt 2\n"));
  EXPECT_LT(find_position("b | attempt 2\n"), find_position("a | all said\n"));
  EXPECT_EQ(mycojobs_({"flow", "logs", flow}).out, followed.out);
  EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--node", "a"}).out, "a | all said\n");
  expect_result(mycojobs_({"flow", "logs", flow, "--node", "none"}), 66, "no node");
  EXPECT_NE(mycojobs_({"flow", "timeline", flow}).out.find("attempt 1 failed"), std::string::npos);
  EXPECT_NE(mycojobs_({"flow", "show", flow}).out.find("flow:2"), std::string::npos)
      << "`flow show` must name the child flow";
}

TEST_F(FlowCommands, OnlyAuthorizedActorsSteerAFlow) {
  start_programs();
  mycojobs_({"context", "grant", "1", "--admin", "5", "--executor", "6", "--submitter", "1"});
  const std::string flow = start_flow("name: f\njobs:\n  a: {pause: wait}\n");
  expect_result(mycojobs_({"flow", "pause", flow, "--actor", "9"}), 77, "context grant 1 --admin 9");
  expect_result(mycojobs_({"flow", "pause", "999", "--actor", "9"}), 77, "context grant 1 --admin 9");
  expect_result(mycojobs_({"flow", "pause", flow, "--actor", "6"}), 77, "actor 6 may not steer flow " + flow);
  expect_result(mycojobs_({"flow", "delete", flow, "--actor", "6"}), 77, "may not administer");
  expect_result(mycojobs_({"flow", "delete", flow, "--actor", "1"}), 77, "may not administer");
  expect_result(mycojobs_({"flow", "pause", flow, "--actor", "1"}), 0, "is paused");
  expect_result(mycojobs_({"flow", "resume", flow, "--actor", "5"}), 0, "is resumed");
  expect_result(mycojobs_({"flow", "cancel", flow}), 0, "cancel");
}

}  // namespace
}  // namespace mycojobs::test
