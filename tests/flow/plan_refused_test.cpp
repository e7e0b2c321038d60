// Rejected definitions; each error names the position and the remedy.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "flows/flow_plan.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Returns the error for these jobs in an otherwise valid flow.
std::string plan_refusal(const std::string& jobs, const std::string& more = "") {
  const auto parsed = parse_json(R"({"name": "x", )" + more + R"("jobs": )" + jobs + "}");
  if (!parsed) return "no JSON: " + parsed.error().message;
  const ParsedPlan read = read_plan(*parsed);
  return read.plan ? "accepted" : join(read.problems);
}

struct Row {
  const char* jobs;
  const char* error;  // the whole error, or its beginning if the text ends in "..."
};

class InvalidFlowPlan : public testing::TestWithParam<Row> {};
TEST_P(InvalidFlowPlan, NamesThePlaceAndTheReason) {
  const std::string output = plan_refusal(GetParam().jobs);
  std::string expected = GetParam().error;
  if (expected.ends_with("...")) {
    expected.resize(expected.size() - 3);
    EXPECT_EQ(output.substr(0, expected.size()), expected) << output;
    EXPECT_EQ(output.find('\n'), std::string::npos) << output;
  } else {
    EXPECT_EQ(output, expected);
  }
}
const Row kRows[] = {
    {"7", "jobs: is the number 7, not a map of jobs by name"},
    {"{}", "jobs: is empty: give the flow at least one"},
    {R"({"a": 7})", "jobs.a: is the number 7, not a map such as {script: ..., type: python}"},
    {R"({"a": {}})", "jobs.a: has no action: add one of script, file, log, wait, pause, approval and flow"},
    {R"({"a": {"log": "x", "wait": "1s"}})", "jobs.a: has both log and wait: divide it into two nodes"},
    {R"({"a": {"script": "x"}})", "jobs.a: type: is missing: give the kind of script, such as python"},
    {R"({"a": {"script": "", "type": "v"}})", "jobs.a.script: is empty"},
    {R"({"a": {"script": "x", "type": "P!"}})", "jobs.a.type: \"P!\" is not a script type..."},
    {R"({"a": {"file": "x.py"}})", "jobs.a.file: is read only by the command line..."},
    {R"({"a": {"log": "x", "need": []}})", "jobs.a.need: unknown field of a node; did you mean \"needs\"?"},
    {R"({"a": {"log": "x", "depends_on": []}})", "jobs.a.depends_on: unknown field of a node; did you mean \"needs\"?"},
    {R"({"a": {"log": "x", "banana": 1}})", "jobs.a.banana: unknown field of a node"},
    {R"({"a": {"log": "x", "retries": 1}})",
     "jobs.a.retries: is not a field of a node that has log: only of one with script"},
    {R"({"a": {"log": "x", "timeout": "1s"}})",
     "jobs.a.timeout: is not a field of a node that has log: only of one with script, pause, approval"},
    {R"({"a": {"pause": true, "gate_timeout": "1s"}})",
     "jobs.a.gate_timeout: use timeout, which limits the waiting of this node as well"},
    {R"({"a": {"log": "x", "name": "a"}})", "jobs.a.name: the key of the map is the name of the node: omit it"},
    {R"({"a": {"log": "x", "needs": ["b", "a"]}, "b": {"log": "y"}})",
     "jobs.a.needs[1]: \"a\" is the node itself: it cannot be its own need"},
    {R"({"build": {"log": "x"}, "b": {"log": "y", "needs": ["buidl"]}})",
     "jobs.b.needs[0]: there is no node \"buidl\"; did you mean \"build\"?"},
    {R"({"build": {"log": "x"}, "b": {"log": "y", "needs": "zebra"}})", "jobs.b.needs: there is no node \"zebra\""},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": ["a", "a"]}})", "jobs.b.needs[1]: \"a\" is named twice"},
    {R"({"a": {"log": "x", "needs": 7}})", "jobs.a.needs: is the number 7, not a text"},
    {R"({"a.b": {"log": "x"}})", "jobs.a.b: the name \"a.b\" is not a valid name of a node..."},
    {R"({"7": {"log": "x"}})", "jobs.7: the name 7 is not a valid name of a node..."},
    {R"({"stop": {"log": "x"}})", "jobs.stop: the name \"stop\" is a reserved word of on_error: choose another"},
    {R"([{"name": "a", "log": "x"}, {"name": "a", "log": "y"}])",
     "jobs[1].name: a node before has the name \"a\" too: rename one"},
    {R"([{"log": "x"}])", "jobs[0]: is not a map with its name"},
    {R"({"a": {"wait": 30}})", "jobs.a.wait: 30 has no unit: write 30s for seconds (units: ms, s, m, h, d)"},
    {R"({"a": {"wait": "soon"}})", "jobs.a.wait: \"soon\" is not a duration..."},
    {R"({"a": {"wait": "0s"}})", "jobs.a.wait: \"0s\" is out of range: use 1ms to 3650d, or omit it"},
    {R"({"a": {"wait": "99999999999999999999d"}})", "jobs.a.wait: \"99999999999999999999d\" is too large"},
    {R"({"a": {"wait": true}})", "jobs.a.wait: is true, not a duration such as 30s, 5m, 2h or 1d"},
    {R"({"a": {"script": "x", "type": "v", "retries": 256}})",
     "jobs.a.retries: is the number 256, not a whole number from 0 to 255"},
    {R"({"a": {"script": "x", "type": "v", "retries": 1.5}})",
     "jobs.a.retries: is the number 1.5, not a whole number from 0 to 255"},
    {R"({"a": {"script": "x", "type": "v", "retries": "2"}})",
     "jobs.a.retries: is the text 2, not a whole number from 0 to 255"},
    {R"({"a": {"script": "x", "type": "v", "env": {"A=B": "1"}}})", "jobs.a.env: the name \"A=B\" has '='..."},
    {R"({"a": {"script": "x", "type": "v", "env": {"A": [1]}}})",
     "jobs.a.env.A: is a list, not a text, a number, true or false"},
    {R"({"a": {"script": "x", "type": "v", "env": "A=1"}})",
     "jobs.a.env: is the text \"A=1\", not a map of names and texts"},
    {R"({"a": {"script": "x", "type": "v", "policy": {"memroy": 1}}})", "jobs.a.policy.memroy: ..."},
    {R"({"a": {"script": "x", "type": "v", "concurrency_limit": 2}})",
     "jobs.a.concurrency_limit: has no effect without a concurrency_key"},
    {R"({"a": {"script": "x", "type": "v", "inputs": "b/x"}, "b": {"log": "y"}})",
     "jobs.a.inputs: \"b\" is not a node that this node needs..."},
    {R"({"a": {"script": "x", "type": "v", "supervisor_url": "ftp://x"}})",
     "jobs.a.supervisor_url: \"ftp://x\" is not a valid supervisor: use http://HOST:PORT, https://HOST or runner:ID"},
    {R"({"a": {"log": "x", "prerequisites": ["approval:"]}})",
     "jobs.a.prerequisites[0]: \"approval:\": the ':' must be followed by..."},
    {R"({"a": {"log": "x", "prerequisites": ["flow:x"]}})",
     "jobs.a.prerequisites[0]: \"flow:x\": the ':' must be followed by the id of a flow, for example flow:12"},
    {R"({"a": {"log": "x", "prerequisites": "signal:go"}, "b": {"log": "x", "prerequisites": ["signal:a", "signal:a"]}})",
     "jobs.b.prerequisites[1]: \"signal:a\" is listed twice"},
    {R"({"a": {"log": "x", "prerequisites": "file:/x"}})", "jobs.a.prerequisites: \"file:/x\" is checked only by..."},
    {R"({"a": {"script": "x", "type": "v", "prerequisites": "moon:full"}})",
     "jobs.a.prerequisites: \"moon:full\" is not a valid prerequisite..."},
    {R"({"a": {"log": "x", "prerequisites": "approval:ok"}, "ok": {"approval": true}})",
     "jobs.a.prerequisites: approval:ok: a node has the same name..."},
    {R"({"a": {"approval": {"approvers": []}}})", "jobs.a.approval.approvers: is empty..."},
    {R"({"a": {"approval": {"approvers": [0]}}})",
     "jobs.a.approval.approvers[0]: is the number 0, not a whole number from 1 to 4294967295"},
    {R"({"a": {"approval": {"who": 1}}})",
     "jobs.a.approval.who: unknown field of an approval; the fields are approvers, timeout and comment"},
    {R"({"a": {"pause": false}})", "jobs.a.pause: is false, not true, a text, or a map of timeout and comment"},
    {R"({"a": {"approval": {"timeout": "1s"}, "timeout": "2s"}})", "jobs.a.timeout: is given twice..."},
    {R"({"a": {"script": "x", "type": "python", "timeout": "500ms"}})",
     "jobs.a.timeout: is not a whole number of seconds..."},
    {R"({"a": {"log": "x", "on_error": "mend"}})", "jobs.a.on_error: there is no node \"mend\""},
    {R"({"a": {"log": "x", "on_error": "a"}})",
     "jobs.a.on_error: \"a\" is the node itself: it cannot be its own error node"},
    {R"({"a": {"log": "x", "on_error": "b"}, "b": {"log": "y", "needs": ["c"]}, "c": {"log": "z"}})",
     "jobs.b.needs: an error node runs when it is called: it cannot need nodes"},
    {R"({"a": {"log": "x", "compensate": "b"}, "b": {"log": "y"}, "c": {"log": "z", "needs": "b"}})",
     "jobs.c.needs: \"b\" is a compensation, which runs only after the flow has failed: no node can need it"},
    {R"({"a": {"log": "x", "compensate": "b"}, "b": {"log": "y"}, "c": {"log": "z", "compensate": "b"}})",
     "jobs.c.compensate: \"b\" is the compensation of \"a\" already, and runs only once: give each its own"},
    {R"({"a": {"log": "x", "compensate": "b"}, "b": {"log": "y"}, "c": {"log": "z", "on_error": "b"}})",
     "jobs.b: is an error node and a compensation: make two nodes of it"},
    {R"({"a": {"log": "x", "compensate": "b"}, "b": {"pause": true}})",
     "jobs.b: a compensation is a job or a log line, not pause"},
    {R"({"a": {"log": "x", "when": {"key": "b.size", "exists": true}}, "b": {"log": "y"}})",
     "jobs.a.when.key: \"b\" does not run before this node: name it, or a node that needs it, in needs"},
    {R"({"a": {"log": "x", "when": {"key": "c.size", "exists": true}}})", "jobs.a.when.key: there is no node \"c\""},
    {R"({"a": {"log": "x", "when": {"key": "a.size", "exists": true}}})",
     "jobs.a.when.key: \"a\" is the node itself: it cannot be its own condition"},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": "a", "when": {"key": "asize", "exists": true}}})",
     "jobs.b.when.key: \"asize\" is not NODE.KEY, as in build.size"},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": "a", "when": {"key": "a.$x", "exists": true}}})",
     "jobs.b.when.key: \"a.$x\": the only name that begins with '$' is $status (finished or error)"},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": "a", "when": {"key": "a.x", "greater_than": "9"}}})",
     "jobs.b.when.greater_than: is the text 9, not a number"},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": "a", "when": {"key": "a.x"}}})",
     "jobs.b.when: has no test: give one of equals, greater_than, less_than and exists"},
    {R"({"a": {"log": "x"}, "b": {"log": "y", "needs": "a", "when": [{"exists": true}]}})",
     "jobs.b.when[0]: key: is missing: give NODE.KEY, as in build.size"},
    {R"({"a": {"flow": {"name": "i", "jobs": {"b": {"log": 1}}}}})",
     "jobs.a.flow.jobs.b.log: is the number 1, not a text"},
    {R"({"a": {"flow": {"jobs": {"b": {"log": "1"}}}}})", "jobs.a.flow: name: is missing: give the flow one"},
};
INSTANTIATE_TEST_SUITE_P(FlowPlan, InvalidFlowPlan, testing::ValuesIn(kRows));

TEST(FlowPlanRefused, ErrorsOfTheFlowItselfAreReported) {
  const auto get_error = [](const std::string& text) {
    const ParsedPlan read = read_plan(json::parse(text));
    return read.plan ? "accepted" : join(read.problems);
  };
  EXPECT_EQ(get_error("[]"), "is a list, not a map with a name and jobs");
  EXPECT_EQ(get_error("{}"), "name: is missing: give the flow one\njobs: is missing: give the flow at least one");
  EXPECT_EQ(get_error(R"({"name": "a b", "jobs": {"a": {"log": "x"}}})").substr(0, 48),
            "name: \"a b\" is not a valid name of a flow: use 1");
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x"}})", R"("tiemout": "1s", )"),
            "tiemout: unknown field of a flow; did you mean \"timeout\"?");
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x"}})", R"("on_error": "a", )").substr(0, 50),
            "on_error: \"a\" is neither stop nor continue (only a");
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x"}})", R"("max_parallel": -1, )"),
            "max_parallel: is the number -1, not a whole number from 0 to 1000000");
}

TEST(FlowPlanRefused, CycleIsShownByItsShortestPath) {
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x", "needs": "d"}, "b": {"log": "x", "needs": "a"},
                        "c": {"log": "x", "needs": ["b", "a"]}, "d": {"log": "x", "needs": "c"},
                        "z": {"log": "x", "needs": "d"}})"),
            "jobs.c.needs: a cycle of nodes that can never start: a -> c -> d -> a");
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x", "needs": "b"}, "b": {"log": "x", "needs": "a"},
                        "c": {"log": "x", "needs": "d"}, "d": {"log": "x", "needs": "c"}})"),
            "jobs.b.needs: a cycle of nodes that can never start: a -> b -> a\n"
            "jobs.d.needs: a cycle of nodes that can never start: c -> d -> c");
}

TEST(FlowPlanRefused, ErrorNodesThatWaitForEachOtherAreACycle) {
  EXPECT_EQ(plan_refusal(R"({"r": {"log": "x", "on_error": "a"}, "a": {"log": "x", "on_error": "b"},
                        "b": {"log": "x", "on_error": "a"}})"),
            "jobs.b: a cycle of nodes that can never start: a -> b -> a");
  EXPECT_EQ(plan_refusal(R"({"a": {"log": "x", "needs": "c", "on_error": "e"}, "e": {"log": "x"},
                        "c": {"log": "x", "needs": "e"}})"),
            "jobs.e: a cycle of nodes that can never start: a -> e -> c -> a");
}

TEST(FlowPlanRefused, ErrorsAreReportedTogetherUpToALimit) {
  json jobs = json::object();
  for (int i = 0; i < 200; ++i) jobs["n" + std::to_string(i)] = {{"log", 7}, {"needs", {"nobody"}}};
  const ParsedPlan read = read_plan({{"name", "x"}, {"jobs", jobs}});
  EXPECT_FALSE(read.plan);
  EXPECT_EQ(read.problems.size(), 50U);
}

TEST(FlowPlanRefused, NestedFlowsAreLimited) {
  json flow = {{"name", "x"}, {"jobs", {{"a", {{"log", "x"}}}}}};
  for (int i = 0; i < 8; ++i) flow = {{"name", "x"}, {"jobs", {{"a", {{"flow", flow}}}}}};
  EXPECT_TRUE(read_plan(flow).plan);
  flow = {{"name", "x"}, {"jobs", {{"a", {{"flow", flow}}}}}};
  const ParsedPlan read = read_plan(flow);
  ASSERT_FALSE(read.plan);
  EXPECT_NE(join(read.problems).find("deeper than 8 levels"), std::string::npos);
}

// An algorithm with worse than near-linear cost would exceed the time limit of the test program for these sizes. No
// assertion depends on time.
json wide(std::size_t count) {
  json jobs = json::object();
  for (std::size_t i = 0; i < count; ++i) jobs["n" + std::to_string(i)] = {{"log", "x"}};
  return jobs;
}

TEST(FlowPlanSize, HundredThousandNodesAreRejected) {
  const ParsedPlan read = read_plan({{"name", "x"}, {"jobs", wide(100000)}});
  ASSERT_FALSE(read.plan);
  EXPECT_EQ(join(read.problems), "jobs: 100000 nodes are more than 20000: divide them into child flows");
}

TEST(FlowPlanSize, LongestChainWithConditionsIsRead) {
  json jobs = wide(kMaxFlowNodes);
  for (std::size_t i = 1; i < kMaxFlowNodes; ++i) {
    const std::string before = "n" + std::to_string(i - 1);
    jobs["n" + std::to_string(i)] = {
        {"log", "x"},
        {"needs", before},
        {"when", {{{"key", "n0.a"}, {"exists", true}}, {{"key", before + ".a"}, {"exists", true}}}}};
  }
  const ParsedPlan read = read_plan({{"name", "x"}, {"jobs", jobs}});
  ASSERT_TRUE(read.plan) << join(read.problems);
  EXPECT_EQ(read.plan->nodes[*read.plan->find("n0")].watched_keys.size(), 1U);
}

TEST(FlowPlanSize, LargestCycleIsFoundAndShortened) {
  json jobs = wide(kMaxFlowNodes);
  for (std::size_t i = 0; i < kMaxFlowNodes; ++i) {
    jobs["n" + std::to_string(i)]["needs"] = "n" + std::to_string((i + 1) % kMaxFlowNodes);
  }
  const ParsedPlan read = read_plan({{"name", "x"}, {"jobs", jobs}});
  ASSERT_FALSE(read.plan);
  EXPECT_NE(join(read.problems).find("more) -> "), std::string::npos) << join(read.problems);
}

TEST(FlowPlanSize, ManyWrongNeedsAreRejected) {
  json jobs = wide(kMaxFlowNodes);
  for (std::size_t i = 100; i < kMaxFlowNodes; ++i) {
    json needs = json::array();
    for (std::size_t j = 1; j <= 100; ++j) needs.push_back("n" + std::to_string(i - j));
    needs.push_back("n1x" + std::to_string(i));
    jobs["n" + std::to_string(i)]["needs"] = needs;
  }
  const ParsedPlan read = read_plan({{"name", "x"}, {"jobs", jobs}});
  EXPECT_EQ(read.problems.size(), 50U);
}

TEST(FlowPlanSurvives, AnyValueAnywhere) {
  const json whole = json::parse(R"({"name": "x", "env": {"A": "1"}, "timeout": "1s", "jobs": {
    "a": {"script": "x", "type": "v", "env": {"A": "1"}, "policy": {"pids": 9}, "timeout": "1s", "retries": 1},
    "b": {"approval": {"approvers": [1], "comment": "x"}, "needs": ["a"], "when": [{"key": "a.x", "equals": 1}]},
    "c": {"flow": {"name": "y", "jobs": [{"name": "z", "wait": "1s"}]}, "needs": ["b"], "on_error": "d"},
    "d": {"log": "x", "prerequisites": ["signal:x"]}}})");
  ASSERT_TRUE(read_plan(whole).plan) << join(read_plan(whole).problems);
  const std::vector<json> others = {
      nullptr,   7, -1.5, true, "", "x", json::array(), json::object(), json::array({nullptr}), json{{"", nullptr}},
      "\x01\xff"};
  const json flat = whole.flatten();
  for (const auto& [path, value] : flat.items()) {
    for (std::size_t cut = 0; cut != std::string::npos; cut = path.find('/', cut + 1)) {
      const json::json_pointer at(path.substr(0, cut == 0 ? path.size() : cut));
      for (const json& other : others) {
        json changed = whole;
        changed[at] = other;
        const ParsedPlan read = read_plan(changed);
        EXPECT_EQ(read.plan.has_value(), read.problems.empty());
      }
    }
  }
}

}  // namespace
}  // namespace mycojobs
