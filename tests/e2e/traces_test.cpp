// The trace of a job and of a flow, sent to a collector of the tests; and collectors that hang or refuse.
#include <fstream>
#include <regex>
#include <set>

#include "e2e/client.h"
#include "e2e/world.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

using namespace test;
using nlohmann::json;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kCaller = "00f067aa0ba902b7";
const std::string kContext = "00-" + kTrace + "-" + kCaller + "-01";

class TracesE2e : public Operator {
 protected:
  Process collector(const std::string& mode = "") {
    std::vector<std::string> words{mj::test::source_path("tests/e2e/span_receiver.py"), folder_ / "spans"};
    if (!mode.empty()) words.push_back(mode);
    Process started(folder_, words);
    EXPECT_TRUE(eventually([&] { return started.out().ends_with("/v1/traces\n"); })) << started.err();
    endpoint_ = started.out();
    endpoint_.pop_back();
    return started;
  }
  std::vector<json> spans() const {
    std::vector<json> all;
    std::ifstream file(folder_ / "spans");
    for (std::string line; std::getline(file, line);) {
      auto span = json::parse(line, nullptr, false);
      if (span.is_object()) all.push_back(std::move(span));
    }
    return all;
  }
  std::vector<json> named(const std::string& name) const {
    std::vector<json> found;
    for (json& span : spans()) {
      if (span["name"] == name) found.push_back(std::move(span));
    }
    return found;
  }
  bool has(const std::string& name, std::size_t count) const {
    return eventually([&] { return named(name).size() >= count; });
  }
  // Each span belongs to the trace, has a unique id, an existing parent or the caller's, and does not end before it
  // begins.
  void expect_one_tree() const {
    std::set<std::string> ids{kCaller};
    for (const json& span : spans()) EXPECT_TRUE(ids.insert(span["spanId"]).second) << span;
    for (const json& span : spans()) {
      EXPECT_EQ(span["traceId"], kTrace) << span;
      EXPECT_TRUE(ids.contains(span["parentSpanId"])) << span;
      EXPECT_LE(std::stoull(span["startTimeUnixNano"].get<std::string>()),
                std::stoull(span["endTimeUnixNano"].get<std::string>()));
    }
  }
  // Returns the number of dropped spans from the agent's /metrics.
  double dropped(const Process& agent) const {
    std::smatch found;
    const std::string log = agent.err();
    if (!std::regex_search(log, found, std::regex("health at (http://[0-9.:]+)/"))) return 0;
    const std::string text = run(folder_, {"curl", "-s", found[1].str() + "/metrics"}).out;
    const std::string line = "mycojobs_spans_total{result=\"dropped\"} ";
    const auto at = text.find(line);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + line.size()));
  }
  std::vector<std::string> traced(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--trace-endpoint", endpoint_});
    return more;
  }

  std::string endpoint_;
};

TEST_F(TracesE2e, JobIsTracedFromItsSubmissionToItsEnd) {
  const Process collector = this->collector();
  Process agent = this->agent(20, traced());
  const std::string job =
      mycojobs_.submit("import os\nprint(os.environ['MYCOJOBS_TRACEPARENT'])", traced({"--traceparent", kContext}));
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  for (const char* name : {"submit", "wait", "claim", "sandbox", "run", "store"}) ASSERT_TRUE(has(name, 1)) << name;
  expect_one_tree();
  const json submit = named("submit")[0];
  EXPECT_EQ(submit["parentSpanId"], kCaller);
  EXPECT_EQ(submit["service"], "mycojobs");
  for (const char* name : {"wait", "claim", "sandbox", "run", "store"}) {
    EXPECT_EQ(named(name)[0]["parentSpanId"], submit["spanId"]) << name;
    EXPECT_EQ(named(name)[0]["service"], "mycojobs-agent") << name;
  }
  EXPECT_EQ(mycojobs_.field(job, "traceparent"), "00-" + kTrace + "-" + submit["spanId"].get<std::string>() + "-01");
  const std::string run = "00-" + kTrace + "-" + named("run")[0]["spanId"].get<std::string>() + "-01";
  EXPECT_EQ(mycojobs_({"job", "logs", job}).out, run + "\n") << "the script's own spans belong below its run";
}

std::string attribute(const json& span, const std::string& key) {
  for (const json& each : span["attributes"]) {
    if (each["key"] == key) return each["value"]["stringValue"];
  }
  return {};
}

TEST_F(TracesE2e, FailedJobHasItsEndAsStatus) {
  const Process collector = this->collector();
  Process agent = this->agent(20, traced());
  const std::string job =
      mycojobs_.submit("raise ValueError('x')", traced({"--traceparent", kContext, "--retries", "1"}));
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  for (const char* name : {"claim", "sandbox", "run", "store"}) ASSERT_TRUE(has(name, 2)) << name;
  ASSERT_TRUE(has("submit", 1));
  for (const char* name : {"run", "store"}) {
    for (const json& span : named(name)) {
      EXPECT_EQ(span["status"]["code"], 2) << name;
      EXPECT_EQ(span["status"]["message"], "exception") << name;
    }
  }
  for (const char* name : {"claim", "sandbox", "run", "store"}) {
    std::set<std::string> attempts;
    for (const json& span : named(name)) attempts.insert(attribute(span, "mycojobs.attempt"));
    EXPECT_EQ(attempts, (std::set<std::string>{"1", "2"})) << name;
  }
  const std::map<std::string, int> kinds{{"submit", 4},  {"claim", 5}, {"run", 5},
                                         {"sandbox", 1}, {"store", 1}, {"wait", 1}};
  for (const auto& [name, kind] : kinds) {
    for (const json& span : named(name)) EXPECT_EQ(span["kind"], kind) << name;
  }
  const auto began = [](const json& span) { return std::stoull(span["startTimeUnixNano"].get<std::string>()); };
  for (const json& span : named("sandbox")) EXPECT_GE(began(span), began(named("submit")[0]));
}

// Returns the depth and name of each span: the first `width` characters of each line.
std::multiset<std::string> parse_rows(const std::string& text, std::size_t width) {
  std::multiset<std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, width);
    rows.insert(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return rows;
}
// Reads the expected tree from docs/tracing.md.
std::multiset<std::string> tree_of_the_manual() {
  constexpr std::size_t kNames = 16;
  std::ostringstream manual;
  manual << std::ifstream(mj::test::source_path("docs/tracing.md")).rdbuf();
  const std::string text = manual.str(), fence = "```text\n";
  const std::size_t from = text.find(fence) + fence.size();
  return parse_rows(text.substr(from, text.find("```", from) - from), kNames);
}

TEST_F(TracesE2e, FlowIsTracedStepByStep) {
  const Process collector = this->collector();
  Process agent = this->agent(20, traced());
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--api-tokens", folder_ / "tokens", "--trace-endpoint", endpoint_});
  std::ofstream(folder_ / "flow.yaml") << "name: traced\njobs:\n"
                                          "  one: {type: python, script: pass}\n"
                                          "  two: {needs: one, type: python, script: pass}\n";
  const ProcessResult result =
      mycojobs_(traced({"flow", "start", folder_ / "flow.yaml", "--traceparent", kContext, "--follow"}));
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  ASSERT_TRUE(has("flow", 1));
  ASSERT_TRUE(has("flow step", 3));
  for (const char* name : {"wait", "claim", "sandbox", "run", "store"}) ASSERT_TRUE(has(name, 2)) << name;
  expect_one_tree();
  const json submit = named("submit")[0];
  EXPECT_EQ(submit["parentSpanId"], kCaller);
  EXPECT_EQ(named("flow")[0]["parentSpanId"], submit["spanId"]);
  std::set<std::string> steps;
  for (const json& step : named("flow step")) {
    EXPECT_EQ(step["parentSpanId"], submit["spanId"]);
    steps.insert(step["spanId"]);
  }
  EXPECT_GE(steps.size(), 2U);
  std::set<std::string> parents;
  for (const json& run : named("run")) {
    EXPECT_TRUE(steps.contains(run["parentSpanId"])) << run;
    parents.insert(run["parentSpanId"]);
  }
  EXPECT_EQ(parents.size(), 2U) << "each job is below the step that queued it";
  const ProcessResult drawn =
      run(folder_, {mj::test::source_path("tests/e2e/span_tree.py"), folder_ / "spans", "--names"});
  EXPECT_EQ(parse_rows(drawn.out, std::string::npos), tree_of_the_manual()) << drawn.out << drawn.err;
}

TEST_F(TracesE2e, SlowCollectorDelaysNoJob) {
  for (const std::string mode : {"hang", "refuse"}) {
    const Process collector = this->collector(mode);
    Process agent = this->agent(20, traced({"--metrics-listen", "127.0.0.1:0"}));
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::string> jobs;
    for (int i = 0; i < 20; ++i) jobs.push_back(mycojobs_.submit("pass", {"--traceparent", kContext}));
    for (const std::string& job : jobs) ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60)) << mode;
    EXPECT_TRUE(spans().empty());
    EXPECT_TRUE(mode == "hang" || eventually([&] { return dropped(agent) > 0; }))
        << "each try is given up, and counted";
    agent.signal(SIGTERM);
    EXPECT_EQ(agent.wait().code, 0) << mode;
  }
}

TEST_F(TracesE2e, MalformedTraceIsRejectedAtInput) {
  expect_says(mycojobs_({"job", "submit", "-", "--type", "python", "--traceparent", "00-x"}, "pass"), 65,
              "--traceparent: ");
  std::ofstream(folder_ / "flow.yaml") << "name: x\njobs:\n  one: {type: python, script: pass}\n";
  expect_says(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--traceparent", "00-x"}), 65, "--traceparent: ");
  expect_says(run(folder_, {program_path(), "agent", "--redis", redis_.url(), "--trace-endpoint", "collector:4318"}),
              65, "trace.endpoint: ");
}

TEST_F(TracesE2e, LogNamesTheTraceOfAJob) {
  Process agent = this->agent(20);
  submit(redis_, PlainJob{.extra_fields = {"traceparent", kContext, "policy", R"({"memory": "much"})"}});
  EXPECT_TRUE(eventually([&] { return agent.err().find("job:12:1 (trace " + kTrace + "): ") != std::string::npos; }))
      << agent.err();
}

// An agent without a collector passes the received trace context to the script.
TEST_F(TracesE2e, ContextReachesTheScriptWithoutACollector) {
  Process agent = this->agent(20);
  const std::string job =
      mycojobs_.submit("import os\nprint(os.environ['MYCOJOBS_TRACEPARENT'])", {"--traceparent", kContext});
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", job}).out, kContext + "\n");
  const std::string none = mycojobs_.submit("import os\nprint('MYCOJOBS_TRACEPARENT' in os.environ)");
  ASSERT_TRUE(mycojobs_.wait_for_value(none, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", none}).out, "False\n");
}

}  // namespace
}  // namespace mycojobs
