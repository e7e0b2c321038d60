// Logs of jobs and flows with a real agent: order of the streams, times, selection, and the runs of a job.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <regex>

#include "e2e/client.h"
#include "e2e/pty.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kAlternatingScript = "for i in $(seq 1 200); do echo \"out $i\"; echo \"err $i\" >&2; done\nexit 3\n";

class Logs : public Operator {
 protected:
  const std::string config_ = folder_.write(
      "agent.toml", "[executors.bash]\ncommand = [\"/bin/bash\", \"{script}\"]\n[ceiling]\nwarm.runs = 1000\n");

  Process start_log_agent(int runner = 20) { return start_registered_agent(runner, {"--config", config_}); }
  std::string submit_with_policy(const std::string& script, const std::string& type, const std::string& policy) {
    return mycojobs_.submit(script,
                            {"--type", type, "--config", config_, "--policy", folder_.write("policy.toml", policy)});
  }
  std::string read_log(const std::string& job, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"job", "logs", job});
    return mycojobs_(std::move(flags)).out;
  }
};

std::string make_alternating_lines() {
  std::string lines;
  for (int i = 1; i <= 200; ++i) lines += "out " + std::to_string(i) + "\nerr " + std::to_string(i) + "\n";
  return lines;
}

TEST_F(Logs, MergedOutputOfAProgramIsInTheOrderOfItsWrites) {
  const Process agent = start_log_agent();
  const std::string job = submit_with_policy(kAlternatingScript, "bash", "output.merge = true\n");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error")) << mycojobs_({"job", "show", job}).out;
  const std::string lines = make_alternating_lines();
  EXPECT_EQ(read_log(job), lines);
  const auto shown = mycojobs_.run_json({"job", "show", job});
  const std::string stderr_text = nlohmann::json::parse(mycojobs_.read_field(job, "error_info")).value("stderr", "");
  EXPECT_FALSE(stderr_text.empty());
  EXPECT_TRUE(lines.ends_with(stderr_text)) << stderr_text;
  EXPECT_EQ(shown["usage"].value("stdout_bytes", 0U), lines.size());
  EXPECT_EQ(shown["usage"].value("stderr_bytes", 1U), 0U);
}

TEST_F(Logs, SeparateOutputKeepsTheOrderOfEachStream) {
  const Process agent = start_log_agent();
  const std::string job = submit_with_policy(kAlternatingScript, "bash", "output.merge = false\n");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  std::string out, err;
  for (int i = 1; i <= 200; ++i) {
    out += "out " + std::to_string(i) + "\n";
    err += "err " + std::to_string(i) + "\n";
  }
  EXPECT_EQ(read_log(job), out);
  EXPECT_EQ(mycojobs_({"job", "logs", job}).err, err);
}

TEST_F(Logs, MergedOutputOfAWarmScriptIsInTheOrderOfItsLines) {
  const Process agent = start_log_agent();
  const std::string script =
      "import sys\ndef main(job):\n  for i in range(1, 201):\n    print('out', i)\n    print('err', i, "
      "file=sys.stderr)\n";
  for (int run = 0; run < 2; ++run) {
    const std::string job = submit_with_policy(script, "python", "output.merge = true\nwarm.runs = 10\n");
    ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << mycojobs_({"job", "show", job}).out;
    EXPECT_EQ(read_log(job), make_alternating_lines()) << run;
  }
}

TEST_F(Logs, LinesAreSelectedAndHaveTheirTimes) {
  const Process agent = start_log_agent();
  const std::string job = mycojobs_.submit(
      "import time\nprint('one\\ntwo', flush=True)\ntime.sleep(2)\nprint('three\\nfour\\nfive', flush=True)");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_EQ(read_log(job, {"--tail", "2"}), "four\nfive\n");
  EXPECT_EQ(read_log(job, {"--tail", "2", "--follow"}), "four\nfive\n");
  EXPECT_EQ(read_log(job, {"--tail", "99"}), "one\ntwo\nthree\nfour\nfive\n");
  const std::string times = read_log(job, {"--timestamps"});
  const std::regex line(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\w+))");
  std::vector<std::string> words, stamps;
  for (auto it = std::sregex_iterator(times.begin(), times.end(), line); it != std::sregex_iterator(); ++it) {
    words.push_back((*it)[1]);
    stamps.push_back(it->str().substr(0, 23));
  }
  EXPECT_THAT(words, testing::ElementsAre("one", "two", "three", "four", "five")) << times;
  ASSERT_EQ(stamps.size(), 5U);
  EXPECT_LT(stamps[1], stamps[2]) << "the time is that of the line, not of the end";
  EXPECT_EQ(read_log(job, {"--since", stamps[2].substr(0, 19) + "Z"}), "three\nfour\nfive\n") << times;
  EXPECT_EQ(read_log(job, {"--since", "2100-01-01T00:00:00Z"}), "");
  expect_result(mycojobs_({"job", "logs", job, "--tail", "0"}), 65, "--tail");
  expect_result(mycojobs_({"job", "logs", job, "--since", "soon"}), 65, "--since");
}

TEST_F(Logs, FollowedLogContinuesThroughAllAttempts) {
  const Process agent = start_log_agent();
  const std::string job = mycojobs_.submit(
      "import os\nprint('run', os.environ['MYCOJOBS_ATTEMPT'], flush=True)\nassert os.environ['MYCOJOBS_ATTEMPT'] == "
      "'3'",
      {"--retries", "2"});
  const ProcessResult followed = mycojobs_({"job", "logs", job, "--follow"});
  EXPECT_EQ(followed.out, "run 1\nrun 2\nrun 3\n") << followed.err;
  EXPECT_THAT(followed.err, HasSubstr("attempt 2, delivery 1, runner 20\n"));
  EXPECT_THAT(followed.err, HasSubstr("attempt 3, delivery 1, runner 20\n"));
  EXPECT_THAT(followed.err, Not(HasSubstr("attempt 1,")));
}

TEST_F(Logs, DeliveryAfterTheDeathOfAnAgentIsMarked) {
  std::string job;
  {
    Process agent = start_log_agent();
    job = mycojobs_.submit("import time\nprint('up', flush=True)\ntime.sleep(600)");
    ASSERT_TRUE(eventually([&] { return read_log(job) == "up\n"; }));
    agent.signal(SIGKILL);
    agent.wait();
  }
  const Process other = start_log_agent(21);
  ASSERT_TRUE(eventually([&] { return read_log(job) == "up\nup\n"; })) << read_log(job);
  EXPECT_THAT(mycojobs_({"job", "logs", job}).err, HasSubstr("attempt 1, delivery 2, runner 21\n"));
  EXPECT_EQ(mycojobs_({"job", "cancel", job}).code, 0);
}

TEST_F(Logs, EndOfALongOutputIsVisibleWhileTheJobRuns) {
  const Process agent = start_log_agent();
  const std::string job = mycojobs_.submit(
      "import time\nfor i in range(100000):\n  print('line', i, '.' * 30)\nprint('present end', "
      "flush=True)\ntime.sleep(600)");
  ASSERT_TRUE(eventually([&] { return read_log(job).ends_with("present end\n"); })) << read_log(job).size();
  EXPECT_EQ(mycojobs_.read_field(job, "status"), "started");
  const ProcessResult logs = mycojobs_({"job", "logs", job});
  EXPECT_GT(logs.out.size(), 4U * 1000 * 1000);
  EXPECT_EQ(std::count(logs.out.begin(), logs.out.end(), '\n'), 100001);
  EXPECT_EQ(logs.err, "");
  EXPECT_EQ(read_log(job, {"--tail", "1"}), "present end\n");
  EXPECT_EQ(mycojobs_({"job", "cancel", job}).code, 0);
}

// The commands of these tests have another state folder than the agents, as on another host.
class SpooledLogs : public Logs {
 protected:
  static constexpr std::size_t kFloodBytes = 64 * 100000 + 5;
  // Runs a job that writes kFloodBytes, and returns its key.
  std::string run_flood() {
    const std::string job = mycojobs_.submit("for i in range(64):\n  print(chr(48 + i) * 99999)\nprint('last')");
    EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished", Seconds(60)));
    return job;
  }
  static std::string make_flood() {
    std::string text;
    for (char c = 48; c < 48 + 64; ++c) text += std::string(99999, c) + '\n';
    return text + "last\n";
  }
};

TEST_F(SpooledLogs, FollowerReceivesEachByte) {
  const Process agent = start_log_agent();
  const std::string job = mycojobs_.submit(
      "import time\nfor i in range(64):\n  print(chr(48 + i) * 99999, flush=True)\n  time.sleep(0.05)\nprint('last')");
  const ProcessResult followed = mycojobs_({"job", "logs", job, "--follow"});
  EXPECT_EQ(followed.out == make_flood(), true) << followed.out.size() << followed.err;
  EXPECT_EQ(followed.err, "");
  const ProcessResult stored = mycojobs_({"job", "logs", job});
  EXPECT_EQ(stored.out == followed.out, true) << stored.out.size() << stored.err;
}

TEST_F(SpooledLogs, RunDeliversEachByte) {
  const std::string script = folder_.write("flood.py", "print(('x' * 99999 + '\\n') * 64)");
  const ProcessResult result = run(folder_, {program_path(), "run", "--state-dir", folder_ / "own", script});
  EXPECT_EQ(result.out.size(), 6'400'001U) << result.err;
  EXPECT_EQ(sum_output_gaps(result.err), 0U) << result.err;
}

TEST_F(SpooledLogs, GapNamesTheRunnerThatIsAway) {
  std::string job;
  {
    Process agent = start_log_agent();
    job = run_flood();
    agent.signal(SIGKILL);
    agent.wait();
  }
  const ProcessResult away = mycojobs_({"job", "logs", job});
  EXPECT_THAT(away.err, HasSubstr(": runner 20, which has these lines, is away\n"));
  EXPECT_EQ(away.out.size() + sum_output_gaps(away.err), kFloodBytes) << away.err;
  EXPECT_TRUE(away.out.ends_with("last\n"));
  const Process agent_again = start_log_agent();
  ASSERT_TRUE(eventually([&] { return mycojobs_({"job", "logs", job}).err.empty(); }));
  EXPECT_EQ(read_log(job) == make_flood(), true);
}

TEST_F(SpooledLogs, MiddleIsDroppedBeyondTheLimit) {
  const Process agent = start_registered_agent(20, {"--job-log-bytes", "2MiB"});
  const std::string job = run_flood();
  const ProcessResult logs = mycojobs_({"job", "logs", job});
  EXPECT_EQ(logs.out.size() + sum_output_gaps(logs.err), kFloodBytes) << logs.err;
  EXPECT_GT(logs.out.size(), 2U << 20);
  EXPECT_LT(logs.out.size(), 4U << 20);
  const std::string flood = make_flood();
  EXPECT_TRUE(logs.out.starts_with(flood.substr(0, 1'400'000))) << "the head";
  EXPECT_TRUE(logs.out.ends_with(flood.substr(flood.size() - 800'000))) << "the tail";
}

TEST_F(SpooledLogs, FullLogIsAnArtifact) {
  const Process agent = start_log_agent();
  const std::string job =
      submit_with_policy("import sys\nfor i in range(200000): print('line', i)\nprint('error', file=sys.stderr)",
                         "python", "log = \"full\"\n");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished", Seconds(60)));
  const std::string path = folder_ / "log.gz";
  ASSERT_EQ(mycojobs_({"job", "artifacts", job, "job.log.gz", "--output", path}).code, 0);
  const ProcessResult text = run(folder_, {"gunzip", "-c", path});
  std::string expected;
  for (int i = 0; i < 200000; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_THAT(text.out, HasSubstr("error\n"));
  EXPECT_EQ(text.out.size(), expected.size() + 6) << text.err;
}

TEST_F(SpooledLogs, LongLogIsReadToItsLastLineFromAnotherHost) {
  const Process agent = start_registered_agent(20, {"--job-log-bytes", "128MiB", "--job-output-rate", "0"});
  const std::string job = mycojobs_.submit("line = 'x' * 1023\nfor i in range(1 << 16): print(line)\nprint('the end')",
                                           {"--timeout", "200s"});
  const ProcessResult followed = mycojobs_({"job", "logs", job, "--follow"});
  EXPECT_EQ(followed.out.size() + sum_output_gaps(followed.err), (64U << 20) + 8) << followed.err;
  EXPECT_TRUE(followed.out.ends_with("the end\n"));
}

class FlowLogs : public Logs {
 protected:
  void start_coordinator() {
    coordinator_.emplace(folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(),
                                                           "--context", "1", "--state-dir", folder_ / "coordinator"});
  }
  std::string run_flow() {
    start_coordinator();
    const std::string file = folder_.write("flow.yaml", R"yaml(
name: talks
jobs:
  first: {type: python, script: "print('a1\\na2\\na3')"}
  second: {needs: first, type: python, script: "import sys\nprint('b1\\nb2\\nb3', file=sys.stderr)"}
)yaml");
    ProcessResult started = mycojobs_({"flow", "start", file, "--detach"});
    EXPECT_EQ(started.code, 0) << started.err;
    const std::string flow = started.out.substr(5, started.out.find('\n') - 5);
    EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--follow"}).code, 0);
    return flow;
  }
  std::optional<Process> coordinator_;
};

TEST_F(FlowLogs, LinesAreSelectedAndHaveTheirTimes) {
  const Process agent = start_log_agent();
  const std::string flow = run_flow();
  EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--tail", "1"}).out, "first  | a3\nsecond | b3\n");
  EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--tail", "1", "--follow"}).out, "first  | a3\nsecond | b3\n");
  EXPECT_EQ(mycojobs_({"flow", "logs", flow, "--since", "2100-01-01T00:00:00Z"}).out, "");
  const std::string times = mycojobs_({"flow", "logs", flow, "--timestamps", "--node", "first"}).out;
  EXPECT_TRUE(std::regex_search(times, std::regex(R"(^first \| \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z a1\n)")))
      << times;
}

// The store has the last lines, so the runner is not asked for those before.
TEST_F(FlowLogs, LastLinesOfALongLogAreReadWithoutItsRunner) {
  std::optional<Process> agent(start_log_agent());
  start_coordinator();
  const std::string file = folder_.write("flow.yaml", R"yaml(
name: floods
jobs:
  first: {type: python, script: "for i in range(200000): print('line', i, 'x' * 20)"}
  second: {type: python, script: "for i in range(200000): print('line', i, 'x' * 20)"}
)yaml");
  const ProcessResult started = mycojobs_({"flow", "start", file, "--follow"});
  ASSERT_EQ(started.code, 0) << started.out << started.err;
  agent->signal(SIGKILL);
  agent->wait();
  const auto count_published = [&] {
    const std::string stats = redis_.cli(0, {"INFO", "commandstats"});
    const std::size_t at = stats.find("cmdstat_publish:calls=");
    return at == std::string::npos ? 0 : std::stoul(stats.substr(at + 22));
  };
  coordinator_.reset();
  const std::string line = "line 199999 xxxxxxxxxxxxxxxxxxxx\n";
  const auto published = count_published();
  EXPECT_EQ(mycojobs_({"flow", "logs", "1", "--tail", "1"}).out, "first  | " + line + "second | " + line);
  EXPECT_EQ(count_published(), published);
  EXPECT_THAT(mycojobs_({"flow", "logs", "1", "--node", "second"}).out, HasSubstr("runner 20, which has these lines"));
  EXPECT_GT(count_published(), published);
}

TEST_F(FlowLogs, NodesHaveColoursOnATerminalOnly) {
  const Process agent = start_log_agent();
  const std::string flow = run_flow();
  EXPECT_EQ(mycojobs_({"flow", "logs", flow}).out.find('\x1b'), std::string::npos);
  Pty coloured(mycojobs_.make_argv({"flow", "logs", flow}), 80, {"LC_ALL=C.UTF-8"});
  EXPECT_EQ(coloured.wait(), 0);
  EXPECT_THAT(coloured.read_screen(), HasSubstr("\x1b[36mfirst\x1b[0m"));
  EXPECT_THAT(coloured.read_screen(), HasSubstr("\x1b[33msecond\x1b[0m"));
  Pty plain(mycojobs_.make_argv({"flow", "logs", flow}), 80, {"LC_ALL=C.UTF-8", "NO_COLOR=1"});
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_THAT(plain.read_screen(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace mycojobs::test
