// The flow commands with a real Redis, an agent and a coordinator.
#include <csignal>
#include <thread>

#include "e2e/client.h"
#include "inspect/flow_view.h"

namespace mycojobs::test {
namespace {

class FlowCommands : public Operator {
 protected:
  std::string write(const std::string& text) { return folder_.write("flow.yaml", text); }
  // Starts an agent and a coordinator that leads context 1.
  void serve() {
    coordinator_.emplace_back(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--context", "1",
                                          "--state-dir", folder_ / "coordinator"});
    agents_.push_back(agent(20));
    EXPECT_TRUE(eventually([&] {
      return redis_.cli(1, {"EXISTS", "mj:flows:leader"}) == "1" || leads();
    })) << coordinator_.back().err();
  }
  bool leads() { return coordinator_.back().err().find("acquired leadership") != std::string::npos; }
  std::string start(const std::string& yaml, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"flow", "start", write(yaml), "--detach"});
    ProcessResult command_result = mycojobs_(more);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    EXPECT_TRUE(command_result.out.starts_with("flow:")) << command_result.out;
    return command_result.out.substr(5, command_result.out.find('\n') - 5);
  }
  std::string detail(const std::string& flow) { return mycojobs_.json({"flow", "show", flow}).value("detail", ""); }
  std::string node(const std::string& flow, const std::string& name) {
    const auto flow_output = mycojobs_.json({"flow", "show", flow});
    for (const auto& each : flow_output["nodes"]) {
      if (each["name"] == name) return each["node_status"].get<std::string>() + " " + each.value("detail", "");
    }
    return "absent";
  }
  bool wait_for_value(const std::string& flow, const std::string& as) {
    return eventually([&] { return detail(flow) == as; });
  }
  void expect_cause(const std::string& flow, const std::string& cause, const std::string& words) {
    EXPECT_TRUE(eventually([&] {
      const ProcessResult output = mycojobs_({"flow", "explain", flow});
      return output.out.find(cause + "\n") != std::string::npos && output.out.find(words) != std::string::npos;
    })) << mycojobs_({"flow", "explain", flow}).out;
  }

  std::vector<Process> coordinator_, agents_;
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
      write("name: x\njobs:\n  a: {needs: [b], script: pass, type: python}\n  c: {file: gone.py}\n");
  const ProcessResult checked = mycojobs_({"flow", "check", file});
  expect_says(checked, 65, ":3:15: jobs.a.needs[0]: there is no node \"b\"");
  expect_says(checked, 65, "jobs.c.file: ");
  EXPECT_FALSE(mycojobs_.json({"flow", "check", file})["ok"].get<bool>());
  expect_says(mycojobs_({"flow", "start", file}), 65, "jobs.a.needs[0]");
  expect_says(mycojobs_({"flow", "check", folder_ / "gone.yaml"}), 66, "no such file");
  expect_says(mycojobs_({"flow", "start", "abc"}), 66, "no such file");
  expect_says(mycojobs_({"flow", "show", "abc"}), 65, "is not a flow");
  expect_says(mycojobs_({"flow", "show", "77"}), 66, "flow 77 is unknown in context 1");
  expect_says(mycojobs_({"flow", "cancel", "77"}), 66, "does not exist in context 1");
  expect_says(mycojobs_({"flow", "list", "--status", "odd"}), 65, "--status");
  expect_says(mycojobs_({"flow", "graph", file, "--format", "png"}), 65, "--format");
}

// The example of docs/flows.md: the result of its check and of its run.
TEST_F(FlowCommands, JoinAfterAHandledFailureIsSkippedAndReported) {
  const std::string file = write(R"yaml(
name: import
defaults: {type: python}
jobs:
  fetch:  {script: "raise OSError('the source is away')", on_error: cached}
  cached: {script: "result['rows'] = 3"}
  report: {needs: fetch, script: "print('fresh rows')"}
  always: {needs: [fetch, cached], script: "print('fresh or cached rows')"}
)yaml");
  const ProcessResult checked = mycojobs_({"flow", "check", file});
  expect_says(checked, 0, "flow.yaml:7:");
  expect_says(checked, 0, "jobs.report.needs: if fetch fails and cached handles that, report is skipped");
  EXPECT_EQ(checked.err.find("always is skipped"), std::string::npos) << checked.err;
  EXPECT_EQ(mycojobs_.json({"flow", "check", file})["warnings"].size(), 1U);
  serve();
  expect_says(mycojobs_({"flow", "start", file, "--follow"}), 0, "flow 1 completed, 1 node skipped");
  EXPECT_EQ(node("1", "report"), "cancelled skipped");
  EXPECT_EQ(node("1", "always"), "completed ok");
}

// A client with only redis-cli writes two jobs and a flow. Both jobs receive the flow's variables; a job's own
// variables take precedence.
TEST_F(FlowCommands, FlowWrittenWithRedisCliRunsWithItsVariables) {
  serve();
  const std::string script = "import os\nresult = {'region': os.environ['REGION'], 'own': os.environ['OWN']}";
  for (const std::string id : {"2001", "2002"}) {
    redis_.cli(1, {"HSET", "job:12:" + id, "id", id, "caller_id", "12", "context_id", "1", "script", script,
                   "script_type", "python", "status", "dispatched"});
  }
  redis_.cli(1, {"HSET", "job:12:2002", "dependends", "[2001]", "env_vars", R"({"OWN":"of the job"})"});
  redis_.cli(1, {"HSET", "flow:33", "id", "33", "caller_id", "12", "context_id", "1", "jobs", "[2001,2002]", "env_vars",
                 R"({"REGION":"eu","OWN":"of the flow"})", "status", "dispatched"});
  expect_says(mycojobs_({"flow", "start", "33", "--follow"}), 0, "completed");
  const auto result = [this](const std::string& job) {
    return nlohmann::json::parse(redis_.cli(1, {"HGET", job, "result"}), nullptr, false);
  };
  EXPECT_EQ(result("job:12:2001"), (nlohmann::json{{"region", "eu"}, {"own", "of the flow"}}));
  EXPECT_EQ(result("job:12:2002"), (nlohmann::json{{"region", "eu"}, {"own", "of the job"}}));
}

TEST_F(FlowCommands, ListContinuesAfterItsLastRow) {
  serve();
  for (int i = 0; i < 5; ++i) start("name: one\njobs:\n  a: {type: python, script: pass}\n");
  std::vector<std::string> met;
  std::string after;
  for (int pages = 0; pages < 3; ++pages) {
    std::vector<std::string> words{"flow", "list", "--limit", "2", "--json"};
    if (!after.empty()) words.insert(words.end(), {"--after", after});
    const ProcessResult command_result = mycojobs_(words);
    const auto rows = nlohmann::json::parse(command_result.out, nullptr, false);
    ASSERT_TRUE(rows.is_array()) << command_result.out << command_result.err;
    for (const auto& row : rows) met.push_back(row["flow"].dump());
    after = met.back();
    EXPECT_EQ(command_result.err.find("there are more: continue with --after " + after) != std::string::npos, pages < 2)
        << command_result.err;
  }
  EXPECT_EQ(met, (std::vector<std::string>{"5", "4", "3", "2", "1"}));
}

TEST_F(FlowCommands, ScriptFilesAreReadRelativeToTheFile) {
  folder_.write("build.py", "pass");
  const std::string file =
      write("name: files\njobs:\n  build: {file: build.py}\n  test: {needs: [build], file: build.py}\n");
  expect_says(mycojobs_({"flow", "check", file}), 0, "files: 2 nodes");
  expect_says(mycojobs_({"flow", "graph", file}), 0, "→ test");
  expect_says(mycojobs_({"flow", "graph", file, "--format", "ascii"}), 0, "-> test");
  expect_says(mycojobs_({"flow", "graph", file, "--format", "mermaid"}), 0, "n0 --> n1");
}

TEST_F(FlowCommands, MissingCoordinatorIsReported) {
  write(kPipeline);
  const ProcessResult started = mycojobs_({"flow", "start", folder_ / "flow.yaml", "--detach"});
  expect_says(started, 0, "no coordinator leads context 1");
  expect_cause("1", "coordinator_missing", "`mycojobs coordinator --redis URL --context 1`");
  expect_cause("1", "no_runner", "no runner serves queue:python");
  const ProcessResult planned = mycojobs_({"job", "explain", mycojobs_.json({"flow", "show", "1"})["nodes"][1]["job"]});
  expect_says(planned, 0, "flow explain 1");
}

TEST_F(FlowCommands, ListAndShowReportTheSameStatus) {
  serve();
  const std::string flow = start("name: ap\njobs:\n  ship: {approval: \"ok?\"}\n  more: {pause: look}\n");
  ASSERT_TRUE(wait_for_value(flow, "waiting"));
  expect_says(mycojobs_({"flow", "list"}), 0, "waiting");
  EXPECT_EQ(mycojobs_.json({"flow", "list", "--status", "waiting"}).at(0).value("detail", ""), "waiting");
  EXPECT_EQ(mycojobs_.json({"flow", "list", "--status", "started"}).size(), 1U) << "as its record says";
  EXPECT_TRUE(mycojobs_.json({"flow", "list", "--status", "running"}).empty());
  for (const FlowDisplayState& row : flow_display_states())
    EXPECT_EQ(mycojobs_({"flow", "list", "--status", std::string(row.state)}).code, 0) << row.state;
  expect_says(mycojobs_({"flow", "approve", flow, "ship"}), 0, "has the approval (waiting)");
}

TEST_F(FlowCommands, ManualFlowRunsStepByStep) {
  serve();
  const std::string flow = start(kPipeline, {"--key", "one"});
  EXPECT_EQ(start(kPipeline, {"--key", "one"}), flow) << "the same key, the same flow";
  expect_cause(flow, "approval", "`mycojobs flow approve " + flow + " ok --actor ID`");
  expect_says(mycojobs_({"flow", "result", flow}), 75, "has not ended");
  expect_says(mycojobs_({"flow", "approve", flow, "ok"}), 77, "not an approver of node ok");
  expect_says(mycojobs_({"flow", "approve", flow, "ok", "--actor", "12", "--comment", "ship it", "--key", "k"}), 0,
              "has the approval");
  expect_says(mycojobs_({"flow", "approve", flow, "ok", "--actor", "12", "--comment", "ship it", "--key", "k"}), 0,
              "the same request was made before");
  expect_says(mycojobs_({"flow", "cancel", flow, "--key", "k", "--actor", "12"}), 65, "key");
  expect_cause(flow, "signal", "waits for signal:go");
  expect_says(mycojobs_({"flow", "signal", flow, "go", "--payload", "{"}), 65, "--payload: ");
  expect_says(mycojobs_({"flow", "pause", flow, "--comment", std::string(4097, 'x')}), 65, "--comment: is over 4096");
  expect_says(mycojobs_({"flow", "pause", flow, "--key", ""}), 65, "--key: is empty");
  expect_says(mycojobs_({"flow", "pause", flow, "--comment", "lunch"}), 0, "is paused");
  expect_cause(flow, "paused", "paused by 1 since");
  expect_says(mycojobs_({"flow", "resume", flow}), 0, "is resumed");
  expect_says(mycojobs_({"flow", "signal", flow, "go", "--payload", "{\"pin\": 4711}"}), 0, "has the signal");
  expect_cause(flow, "pause", "`mycojobs flow resume " + flow + " hold`");
  expect_says(mycojobs_({"flow", "resume", flow, "hold"}), 0, "is resumed");
  EXPECT_TRUE(wait_for_value(flow, "completed"));
  expect_cause(flow, "finished", "has finished");
  expect_says(mycojobs_({"flow", "timeline", flow}), 0, "approved ok by 12: ship it");
  const ProcessResult journal = mycojobs_({"flow", "journal", flow, "--follow"});
  expect_says(journal, 0, "node_completed");
  EXPECT_EQ(journal.out.find("4711"), std::string::npos) << "what a signal carries is not shown";
  expect_says(mycojobs_({"flow", "result", flow}), 0, "ok.actor = 12");
  expect_says(mycojobs_({"flow", "inspect", flow}), 0, "terminal");
  expect_says(mycojobs_({"flow", "pause", flow}), 65, "ended");
  EXPECT_EQ(mycojobs_.json({"flow", "list"})[0]["status"], "finished");
  expect_says(mycojobs_({"flow", "delete", flow}), 0, "is deleted");
  expect_says(mycojobs_({"flow", "show", flow}), 66, "is unknown in context 1");
}

TEST_F(FlowCommands, FailureIsExplainedRetriedAndReplayed) {
  serve();
  const std::string flow = start(R"(
name: breaks
jobs:
  a: {script: "1/0", type: python}
  b: {needs: [a], script: "pass", type: python}
)");
  EXPECT_TRUE(wait_for_value(flow, "failed"));
  expect_cause(flow, "node_failed", "ZeroDivisionError");
  EXPECT_EQ(node(flow, "b"), "failed dependency_failed");
  expect_says(mycojobs_({"flow", "result", flow}), 1, "ZeroDivisionError");
  expect_says(mycojobs_({"flow", "retry", flow}), 0, "tries again");
  EXPECT_TRUE(eventually([&] {
    const auto nodes = mycojobs_.json({"flow", "show", flow})["nodes"];
    return detail(flow) == "failed" && nodes[0].value("attempt", 0) == 2;
  }));
  const ProcessResult again = mycojobs_({"flow", "replay", flow});
  expect_says(again, 0, "flow:");
  EXPECT_NE(again.out, "flow:" + flow + "\n");
}

TEST_F(FlowCommands, FollowedFlowShowsChangesAndItsExitCode) {
  serve();
  write("name: quick\njobs:\n  a: {script: \"pass\", type: python}\n  b: {needs: [a], log: hello}\n");
  const ProcessResult good = mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"});
  expect_says(good, 0, "a  completed");
  expect_says(good, 0, "flow 1 completed");
  EXPECT_EQ(good.err.find("finished"), std::string::npos) << "one set of words";
  write("name: bad\njobs:\n  a: {script: \"1/0\", type: python}\n");
  expect_says(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"}), 1, "error: ");
  const auto document = mycojobs_.json({"flow", "start", folder_ / "flow.yaml", "--follow"});
  EXPECT_EQ(document["status"], "error");
  EXPECT_EQ(document["nodes"][0]["name"], "a");
}

TEST_F(FlowCommands, UnfollowedFlowContinues) {
  serve();
  write("name: long\njobs:\n  a: {script: \"import time; time.sleep(600)\", type: python}\n");
  Process following(folder_, mycojobs_.line({"flow", "start", folder_ / "flow.yaml", "--follow"}));
  EXPECT_TRUE(eventually([&] { return following.err().find("a  running") != std::string::npos; })) << following.err();
  following.signal(SIGINT);
  const ProcessResult left = following.wait();
  expect_says(left, 130, "`mycojobs flow watch 1` shows it again");
  EXPECT_EQ(detail("1"), "running");
  expect_cause("1", "running", "lease of runner 20 expires in");
  Process watching(folder_, mycojobs_.line({"flow", "watch", "1"}));
  EXPECT_TRUE(eventually([&] { return watching.out().find("  running  ") != std::string::npos; }));
  expect_says(mycojobs_({"flow", "cancel", "1"}), 0, "is being cancelled");
  EXPECT_EQ(watching.wait().code, 130);
  expect_cause("1", "cancelled", "it was cancelled by 1");
}

TEST_F(FlowCommands, InterruptedWatchIsReported) {
  serve();
  const std::string flow = start("name: long\njobs:\n  a: {pause: \"ask nobody\"}\n");
  for (const auto& words : {std::vector<std::string>{"flow", "watch", flow},
                            {"flow", "journal", flow, "--follow"},
                            {"flow", "logs", flow, "--follow"}}) {
    Process watching(folder_, mycojobs_.line(words));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    watching.signal(SIGINT);
    EXPECT_EQ(watching.wait().code, 130) << words[1];
  }
  const std::string flow_output = mycojobs_({"flow", "show", flow}).out;
  EXPECT_NE(flow_output.find("a asks: ask nobody"), std::string::npos) << flow_output;
}

TEST_F(FlowCommands, LogsOfAllNodesAndAttemptsAreInOrder) {
  serve();
  const std::string flow = start(R"yaml(
name: talks
jobs:
  z: {type: python, script: "print('first')\nprint('two', end='')"}
  b: {needs: z, type: python, retries: 1, script: "import os\nprint('attempt', os.environ['MYCOJOBS_ATTEMPT'])\nassert os.environ['MYCOJOBS_ATTEMPT'] > '1'"}
  a: {needs: b, log: "all said"}
  kid: {needs: a, flow: {name: kid, jobs: {x: {log: hi}}}}
)yaml");
  const ProcessResult followed = mycojobs_({"flow", "logs", flow, "--follow"});
  EXPECT_EQ(followed.code, 0) << followed.err;
  const auto at = [&](const std::string& text) { return followed.out.find(text); };
  ASSERT_NE(at("z | first\n"), std::string::npos) << followed.out;
  EXPECT_LT(at("z | first\n"), at("z | two\n"));
  EXPECT_LT(at("z | two\n"), at("b | attempt 1\n"));
  EXPECT_NE(at("b | AssertionError"), std::string::npos) << followed.out;
  EXPECT_LT(at("b | attempt 1\n"), at("b | attempt 2\n"));
  EXPECT_LT(at("b | attempt 2\n"), at("a | all said\n"));
  EXPECT_EQ(mycojobs_({"flow", "logs", flow}).out, followed.out);
  EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--node", "a"}).out, "a | all said\n");
  expect_says(mycojobs_({"flow", "logs", flow, "--node", "none"}), 66, "no node");
  EXPECT_NE(mycojobs_({"flow", "timeline", flow}).out.find("attempt 1 failed"), std::string::npos);
  EXPECT_NE(mycojobs_({"flow", "show", flow}).out.find("flow:2"), std::string::npos) << "the child's id";
}

TEST_F(FlowCommands, OnlyAuthorizedActorsSteerAFlow) {
  serve();
  mycojobs_({"context", "grant", "1", "--admin", "5", "--executor", "6", "--submitter", "1"});
  const std::string flow = start("name: f\njobs:\n  a: {pause: wait}\n");
  expect_says(mycojobs_({"flow", "pause", flow, "--actor", "9"}), 77, "context grant 1 --admin 9");
  expect_says(mycojobs_({"flow", "pause", "999", "--actor", "9"}), 77, "context grant 1 --admin 9");
  expect_says(mycojobs_({"flow", "pause", flow, "--actor", "6"}), 77, "actor 6 may not steer flow " + flow);
  expect_says(mycojobs_({"flow", "delete", flow, "--actor", "6"}), 77, "may not administer");
  expect_says(mycojobs_({"flow", "delete", flow, "--actor", "1"}), 77, "may not administer");
  expect_says(mycojobs_({"flow", "pause", flow, "--actor", "1"}), 0, "is paused");
  expect_says(mycojobs_({"flow", "resume", flow, "--actor", "5"}), 0, "is resumed");
  expect_says(mycojobs_({"flow", "cancel", flow}), 0, "cancel");
}

}  // namespace
}  // namespace mycojobs::test
