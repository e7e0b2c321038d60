// Traces of jobs and flows, sent to the collector span_receiver.py; and collectors that hang or refuse spans.
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

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736", kCallerSpanId = "00f067aa0ba902b7";
const std::string kTraceparent = "00-" + kTraceId + "-" + kCallerSpanId + "-01";

class TracesE2e : public Operator {
 protected:
  Process start_collector(const std::string& mode = "") {
    std::vector<std::string> words{mj::test::source_path("tests/e2e/span_receiver.py"), folder_ / "spans"};
    if (!mode.empty()) words.push_back(mode);
    Process started(folder_, words);
    EXPECT_TRUE(eventually([&] { return started.out().ends_with("/v1/traces\n"); })) << started.err();
    endpoint_ = started.out();
    endpoint_.pop_back();
    return started;
  }
  std::vector<json> read_spans() const {
    std::vector<json> spans;
    std::ifstream file(folder_ / "spans");
    for (std::string line; std::getline(file, line);) {
      auto span = json::parse(line, nullptr, false);
      if (span.is_object()) spans.push_back(std::move(span));
    }
    return spans;
  }
  std::vector<json> find_spans(const std::string& name) const {
    std::vector<json> spans;
    for (json& span : read_spans()) {
      if (span["name"] == name) spans.push_back(std::move(span));
    }
    return spans;
  }
  bool wait_for_spans(const std::string& name, std::size_t count) const {
    return eventually([&] { return find_spans(name).size() >= count; });
  }
  // Checks that all spans belong to the trace, have unique ids, have the caller or another span as parent, and do not
  // end before they begin.
  void expect_one_tree() const {
    std::set<std::string> ids{kCallerSpanId};
    for (const json& span : read_spans()) EXPECT_TRUE(ids.insert(span["spanId"]).second) << span;
    for (const json& span : read_spans()) {
      EXPECT_EQ(span["traceId"], kTraceId) << span;
      EXPECT_TRUE(ids.contains(span["parentSpanId"])) << span;
      EXPECT_LE(std::stoull(span["startTimeUnixNano"].get<std::string>()),
                std::stoull(span["endTimeUnixNano"].get<std::string>()));
    }
  }
  // Returns the number of dropped spans from the agent's /metrics.
  double read_dropped_spans(const Process& agent) const {
    std::smatch match;
    const std::string log = agent.err();
    if (!std::regex_search(log, match, std::regex("health at (http://[0-9.:]+)/"))) return 0;
    const std::string text = run(folder_, {"curl", "-s", match[1].str() + "/metrics"}).out;
    const std::string line = "mycojobs_spans_total{result=\"dropped\"} ";
    const auto at = text.find(line);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + line.size()));
  }
  std::vector<std::string> add_trace_options(std::vector<std::string> more_options = {}) const {
    more_options.insert(more_options.end(), {"--trace-endpoint", endpoint_});
    return more_options;
  }

  std::string endpoint_;
};

TEST_F(TracesE2e, JobIsTracedFromItsSubmissionToItsEnd) {
  const Process collector = start_collector();
  Process agent = start_registered_agent(20, add_trace_options());
  const std::string job = mycojobs_.submit("import os\nprint(os.environ['MYCOJOBS_TRACEPARENT'])",
                                           add_trace_options({"--traceparent", kTraceparent}));
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  for (const char* name : {"submit", "wait", "claim", "sandbox", "run", "store"})
    ASSERT_TRUE(wait_for_spans(name, 1)) << name;
  expect_one_tree();
  const json submit = find_spans("submit")[0];
  EXPECT_EQ(submit["parentSpanId"], kCallerSpanId);
  EXPECT_EQ(submit["service"], "mycojobs");
  for (const char* name : {"wait", "claim", "sandbox", "run", "store"}) {
    EXPECT_EQ(find_spans(name)[0]["parentSpanId"], submit["spanId"]) << name;
    EXPECT_EQ(find_spans(name)[0]["service"], "mycojobs-agent") << name;
  }
  EXPECT_EQ(mycojobs_.read_field(job, "traceparent"),
            "00-" + kTraceId + "-" + submit["spanId"].get<std::string>() + "-01");
  const std::string run = "00-" + kTraceId + "-" + find_spans("run")[0]["spanId"].get<std::string>() + "-01";
  EXPECT_EQ(mycojobs_({"job", "logs", job}).out, run + "\n") << "the script's own spans belong below its run";
}

std::string get_attribute(const json& span, const std::string& key) {
  for (const json& attribute : span["attributes"]) {
    if (attribute["key"] == key) return attribute["value"]["stringValue"];
  }
  return {};
}

TEST_F(TracesE2e, FailedJobHasItsEndAsStatus) {
  const Process collector = start_collector();
  Process agent = start_registered_agent(20, add_trace_options());
  const std::string job =
      mycojobs_.submit("raise ValueError('x')", add_trace_options({"--traceparent", kTraceparent, "--retries", "1"}));
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  for (const char* name : {"claim", "sandbox", "run", "store"}) ASSERT_TRUE(wait_for_spans(name, 2)) << name;
  ASSERT_TRUE(wait_for_spans("submit", 1));
  for (const char* name : {"run", "store"}) {
    for (const json& span : find_spans(name)) {
      EXPECT_EQ(span["status"]["code"], 2) << name;
      EXPECT_EQ(span["status"]["message"], "exception") << name;
    }
  }
  for (const char* name : {"claim", "sandbox", "run", "store"}) {
    std::set<std::string> attempts;
    for (const json& span : find_spans(name)) attempts.insert(get_attribute(span, "mycojobs.attempt"));
    EXPECT_EQ(attempts, (std::set<std::string>{"1", "2"})) << name;
  }
  const std::map<std::string, int> kinds{{"submit", 4},  {"claim", 5}, {"run", 5},
                                         {"sandbox", 1}, {"store", 1}, {"wait", 1}};
  for (const auto& [name, kind] : kinds) {
    for (const json& span : find_spans(name)) EXPECT_EQ(span["kind"], kind) << name;
  }
  const auto get_start_ns = [](const json& span) { return std::stoull(span["startTimeUnixNano"].get<std::string>()); };
  for (const json& span : find_spans("sandbox")) EXPECT_GE(get_start_ns(span), get_start_ns(find_spans("submit")[0]));
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
std::multiset<std::string> read_documented_tree() {
  constexpr std::size_t kNames = 16;
  std::ostringstream manual;
  manual << std::ifstream(mj::test::source_path("docs/tracing.md")).rdbuf();
  const std::string text = manual.str(), code_fence = "```text\n";
  const std::size_t tree_begin = text.find(code_fence) + code_fence.size();
  return parse_rows(text.substr(tree_begin, text.find("```", tree_begin) - tree_begin), kNames);
}

TEST_F(TracesE2e, FlowIsTracedStepByStep) {
  const Process collector = start_collector();
  Process agent = start_registered_agent(20, add_trace_options());
  Process coordinator(
      folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--api-listen", "127.0.0.1:0",
                "--api-tokens", folder_ / "tokens", "--trace-endpoint", endpoint_});
  std::ofstream(folder_ / "flow.yaml") << "name: traced\njobs:\n"
                                          "  one: {type: python, script: pass}\n"
                                          "  two: {needs: one, type: python, script: pass}\n";
  const ProcessResult result =
      mycojobs_(add_trace_options({"flow", "start", folder_ / "flow.yaml", "--traceparent", kTraceparent, "--follow"}));
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  ASSERT_TRUE(wait_for_spans("flow", 1));
  ASSERT_TRUE(wait_for_spans("flow step", 3));
  for (const char* name : {"wait", "claim", "sandbox", "run", "store"}) ASSERT_TRUE(wait_for_spans(name, 2)) << name;
  expect_one_tree();
  const json submit = find_spans("submit")[0];
  EXPECT_EQ(submit["parentSpanId"], kCallerSpanId);
  EXPECT_EQ(find_spans("flow")[0]["parentSpanId"], submit["spanId"]);
  std::set<std::string> step_ids;
  for (const json& step : find_spans("flow step")) {
    EXPECT_EQ(step["parentSpanId"], submit["spanId"]);
    step_ids.insert(step["spanId"]);
  }
  EXPECT_GE(step_ids.size(), 2U);
  std::set<std::string> parents;
  for (const json& run : find_spans("run")) {
    EXPECT_TRUE(step_ids.contains(run["parentSpanId"])) << run;
    parents.insert(run["parentSpanId"]);
  }
  EXPECT_EQ(parents.size(), 2U) << "each job is below the step that queued it";
  const ProcessResult drawn =
      run(folder_, {mj::test::source_path("tests/e2e/span_tree.py"), folder_ / "spans", "--names"});
  EXPECT_EQ(parse_rows(drawn.out, std::string::npos), read_documented_tree()) << drawn.out << drawn.err;
}

TEST_F(TracesE2e, SlowCollectorDelaysNoJob) {
  for (const std::string mode : {"hang", "refuse"}) {
    const Process collector = start_collector(mode);
    Process agent = start_registered_agent(20, add_trace_options({"--metrics-listen", "127.0.0.1:0"}));
    const auto start_time = std::chrono::steady_clock::now();
    std::vector<std::string> jobs;
    for (int i = 0; i < 20; ++i) jobs.push_back(mycojobs_.submit("pass", {"--traceparent", kTraceparent}));
    for (const std::string& job : jobs) ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
    EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(60)) << mode;
    EXPECT_TRUE(read_spans().empty());
    EXPECT_TRUE(mode == "hang" || eventually([&] { return read_dropped_spans(agent) > 0; }))
        << "spans of failed exports must be counted as dropped";
    agent.signal(SIGTERM);
    EXPECT_EQ(agent.wait().code, 0) << mode;
  }
}

TEST_F(TracesE2e, MalformedTraceIsRejectedAtInput) {
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--traceparent", "00-x"}, "pass"), 65,
                "--traceparent: ");
  std::ofstream(folder_ / "flow.yaml") << "name: x\njobs:\n  one: {type: python, script: pass}\n";
  expect_result(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--traceparent", "00-x"}), 65, "--traceparent: ");
  expect_result(run(folder_, {program_path(), "agent", "--redis", redis_.url(), "--trace-endpoint", "collector:4318"}),
                65, "trace.endpoint: ");
}

TEST_F(TracesE2e, LogNamesTheTraceOfAJob) {
  Process agent = start_registered_agent(20);
  submit(redis_, PlainJob{.extra_fields = {"traceparent", kTraceparent, "policy", R"({"memory": "much"})"}});
  EXPECT_TRUE(eventually([&] { return agent.err().find("job:12:1 (trace " + kTraceId + "): ") != std::string::npos; }))
      << agent.err();
}

// An agent without a collector passes the received trace context to the script.
TEST_F(TracesE2e, ContextReachesTheScriptWithoutACollector) {
  Process agent = start_registered_agent(20);
  const std::string job =
      mycojobs_.submit("import os\nprint(os.environ['MYCOJOBS_TRACEPARENT'])", {"--traceparent", kTraceparent});
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", job}).out, kTraceparent + "\n");
  const std::string untraced_job = mycojobs_.submit("import os\nprint('MYCOJOBS_TRACEPARENT' in os.environ)");
  ASSERT_TRUE(mycojobs_.wait_for_value(untraced_job, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", untraced_job}).out, "False\n");
}

}  // namespace
}  // namespace mycojobs
