#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "flows/flow_plan.h"
#include "flows/node_job.h"
#include "model/result_references.h"
#include "model/submitted_files.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json pipeline() {
  return json::parse(R"({
    "name": "pipeline", "env": {"REGION": "eu", "N": 3}, "on_error": "continue", "timeout": "2h", "max_parallel": 10,
    "jobs": {
      "build": {"script": "x = 1", "type": "python", "timeout": "90s", "retries": 2, "env": {"A": true},
                "policy": {"memory": "64 MiB"}, "priority": -5},
      "test": {"needs": "build", "script": "y", "type": "v", "on_error": "mend", "inputs": ["build/report.txt"],
               "when": [{"key": "build.size", "greater_than": 10}, {"key": "build.$status", "equals": "finished"}]},
      "mend": {"script": "z", "type": "python"},
      "undo": {"script": "u", "type": "python"},
      "ok": {"needs": ["test"], "approval": {"approvers": [12, 12, 7], "timeout": "1d", "comment": "ship?"}},
      "deploy": {"needs": ["ok", "build"], "script": "d", "type": "python", "irreversible": true, "on_error": "stop",
                 "compensate": "undo", "prerequisites": ["approval:legal", "wait:5s", "signal:go", "flow:12"],
                 "gate_timeout": "3h", "supervisor_url": "http://10.0.0.2:3030"},
      "hold": {"needs": "deploy", "pause": "look at the dashboards"},
      "later": {"needs": "hold", "wait": "30s"},
      "said": {"needs": "later", "log": "deployed"},
      "child": {"needs": "said", "flow": {"name": "inner", "jobs": {"a": {"log": "x"}}}, "key": "nightly"}
    }})");
}

const PlanNode& node(const FlowPlan& plan, std::string_view name) { return plan.nodes.at(plan.find(name).value()); }
std::vector<std::string> names(const FlowPlan& plan, const std::vector<std::uint32_t>& nodes) {
  std::vector<std::string> out;
  for (std::uint32_t i : nodes) out.push_back(plan.nodes.at(i).name);
  return out;
}
using Names = std::vector<std::string>;

TEST(FlowPlan, ReadsEveryField) {
  const ParsedPlan read = read_plan(pipeline());
  ASSERT_TRUE(read.plan) << join(read.problems);
  const FlowPlan& plan = *read.plan;
  EXPECT_EQ(plan.name, "pipeline");
  EXPECT_EQ(plan.env_vars, (TextMap{{"N", "3"}, {"REGION", "eu"}}));
  EXPECT_EQ(plan.on_error, OnError::proceed);
  EXPECT_EQ(plan.timeout_ms, 7200000U);
  EXPECT_EQ(plan.max_parallel, 10U);
  ASSERT_EQ(plan.nodes.size(), 10U);
  const PlanNode& build = node(plan, "build");
  EXPECT_EQ(build.kind, NodeKind::job);
  EXPECT_EQ(build.job.name, "build");
  EXPECT_EQ(build.job.script, "x = 1");
  EXPECT_EQ(build.job.timeout, 90U);
  EXPECT_EQ(build.job.retries, 2);
  EXPECT_EQ(build.job.env_vars, (TextMap{{"A", "true"}}));
  EXPECT_EQ(build.job.priority, -5);
  EXPECT_EQ(json::parse(build.job.policy), (json{{"memory", "64 MiB"}}));
  EXPECT_EQ(build.watched_keys, (Names{"size"}));
  EXPECT_EQ(build.on_error, OnError::proceed) << "the value of the flow";
  EXPECT_EQ(names(plan, build.dependents), (Names{"deploy", "test"}));
  const PlanNode& test = node(plan, "test");
  EXPECT_EQ(test.on_error, OnError::route);
  EXPECT_EQ(plan.nodes[test.error_node.value()].name, "mend");
  EXPECT_TRUE(node(plan, "mend").on_call);
  ASSERT_EQ(test.when.size(), 2U);
  EXPECT_EQ(describe(test.when[0], "build"), "build.size greater_than 10");
  EXPECT_EQ(describe(test.when[1], "build"), "build.$status equals \"finished\"");
  const PlanNode& deploy = node(plan, "deploy");
  EXPECT_EQ(names(plan, deploy.needs), (Names{"ok", "build"})) << "in the order of the definition";
  EXPECT_TRUE(deploy.irreversible);
  EXPECT_EQ(deploy.on_error, OnError::stop);
  EXPECT_EQ(plan.nodes[deploy.compensation.value()].name, "undo");
  EXPECT_EQ(deploy.gates, (Names{"approval:legal", "signal:go", "flow:12"}));
  EXPECT_EQ(deploy.job.prerequisites, (Names{"wait:5s"}));
  EXPECT_EQ(deploy.timeout_ms, 10800000U);
  EXPECT_EQ(deploy.supervisor_url, "http://10.0.0.2:3030");
  const PlanNode& ok = node(plan, "ok");
  EXPECT_EQ(ok.kind, NodeKind::approval);
  EXPECT_EQ(ok.approvers, (std::vector<Id>{12, 7}));
  EXPECT_EQ(ok.timeout_ms, 86400000U);
  EXPECT_EQ(ok.text, "ship?");
  EXPECT_EQ(ok.job.script_type, "approval");
  EXPECT_EQ(node(plan, "hold").text, "look at the dashboards");
  EXPECT_EQ(node(plan, "later").wait_ms, 30000U);
  EXPECT_EQ(node(plan, "said").text, "deployed");
  const PlanNode& child = node(plan, "child");
  EXPECT_EQ(child.child_key, "nightly");
  EXPECT_TRUE(read_plan(json::parse(child.child)).plan);
}

TEST(FlowPlan, EqualDefinitionsHaveEqualHashes) {
  const auto one = read_plan(json::parse(R"({"name":"x","jobs":{"a":{"log":"1"},"b":{"log":"2","needs":["a"]}}})"));
  const auto two = read_plan(json::parse(R"({"jobs":{"b":{"needs":["a"],"log":"2"},"a":{"log":"1"}},"name":"x"})"));
  const auto other = read_plan(json::parse(R"({"jobs":{"b":{"needs":["a"],"log":"3"},"a":{"log":"1"}},"name":"x"})"));
  EXPECT_EQ(one.plan->hash, two.plan->hash);
  EXPECT_EQ(one.plan->canonical, two.plan->canonical);
  EXPECT_NE(one.plan->hash, other.plan->hash);
}

TEST(FlowPlan, RoundTripsThroughItsText) {
  const auto read = read_plan(pipeline());
  const auto back = parse_stored_plan(read.plan->canonical, read.plan->hash);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->hash, read.plan->hash);
  EXPECT_EQ(back->nodes.size(), read.plan->nodes.size());
  const auto changed = parse_stored_plan(read.plan->canonical + " ", read.plan->hash);
  ASSERT_FALSE(changed);
  EXPECT_NE(changed.error().message.find("another hash"), std::string::npos);
}

TEST(FlowPlan, StoredDefinitionOfAnOlderVersionHasNoReferences) {
  const std::string stored = dump_json(json::parse(R"({"name": "x", "defaults": {"env": {"D": "${PWD}"}}, "jobs": {
    "a": {"script": "x", "type": "v"},
    "b": {"needs": "a", "script": "x", "type": "v", "env": {"A": "${HOME}", "B": "${a.size}", "C": "$${X}"}},
    "c": {"flow": {"name": "y", "jobs": {"d": {"script": "x", "type": "v", "env": {"A": "${HOME}"}}}}}}})"));
  const auto older = parse_stored_plan(stored, sha256_hex(stored));
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_EQ(older->canonical, stored);
  EXPECT_EQ(older->hash, sha256_hex(stored));
  EXPECT_EQ(node(*older, "b").job.env_vars.at("A"), "$${HOME}");
  EXPECT_EQ(node(*older, "b").job.env_vars.at("B"), "$${a.size}");
  EXPECT_EQ(unescape_references(node(*older, "b").job.env_vars.at("C")), "$${X}");
  EXPECT_EQ(node(*older, "b").job.env_vars.at("D"), "$${PWD}");
  EXPECT_TRUE(read_plan(json::parse(node(*older, "c").child)).plan) << "the child flow starts later";
}

TEST(FlowPlan, StoredDefinitionKeepsItsReferences) {
  const auto read = read_plan(json::parse(R"({"name": "x", "jobs": {"a": {"script": "x", "type": "v"},
    "b": {"needs": "a", "script": "x", "type": "v", "env": {"A": "${a.size}", "B": "$${HOME}"}}}})"));
  ASSERT_TRUE(read.plan) << join(read.problems);
  const auto back = parse_stored_plan(read.plan->canonical, read.plan->hash);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->hash, read.plan->hash);
  EXPECT_EQ(node(*back, "b").job.env_vars, node(*read.plan, "b").job.env_vars);
}

TEST(FlowPlan, ListOfJobsKeepsItsOrder) {
  const auto read = read_plan(json::parse(R"({"name":"x","jobs":[{"name":"z","log":"1"},{"name":"a","log":"2"}]})"));
  ASSERT_TRUE(read.plan) << join(read.problems);
  EXPECT_EQ(names(*read.plan, {0, 1}), (Names{"z", "a"}));
}

Job job(Id id, std::string name, std::vector<Id> needs = {}) {
  Job out;
  out.id = id;
  out.caller_id = out.context_id = 1;
  out.name = std::move(name);
  out.script = "print(1)";
  out.script_type = "python";
  out.dependends = std::move(needs);
  return out;
}

TEST(FlowPlan, NodeHasArgumentsInputAndFiles) {
  const auto read = read_plan(json::parse(R"({"name": "x", "inputs": {"n": {"type": "integer", "default": 1}}, "jobs": {
    "a": {"script": "x", "type": "v"},
    "b": {"needs": "a", "script": "x", "type": "v", "args": ["${a.size}", 7, true, "", "$${a}", "${inputs.n}"],
          "stdin": "text", "files": {"f": {"base64": "/w=="}}, "env": {"A": "${a.size}"}}}})"));
  ASSERT_TRUE(read.plan) << join(read.problems);
  const Job& job = node(*read.plan, "b").job;
  EXPECT_EQ(job.args, (Names{"${a.size}", "7", "true", "", "$${a}", "${inputs.n}"}));
  ASSERT_NE(job.submitted_files, nullptr);
  EXPECT_EQ(job.submitted_files->stdin_bytes, "text");
  EXPECT_EQ(job.submitted_files->files.at("f"), "\xff");
  const auto back = parse_stored_plan(read.plan->canonical, read.plan->hash);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*node(*back, "b").job.submitted_files, *job.submitted_files);
}

TEST(FlowPlan, ReferenceWithoutValueIsRejected) {
  const auto get_error = [](const std::string& fields) {
    const auto read = read_plan(json::parse(
        R"({"name": "x", "jobs": {"a": {"script": "x", "type": "v"}, "e": {"script": "x", "type": "v", "each": [1]},
        "b": {"script": "x", "type": "v", )" +
        fields + "}}}"));
    return read.plan ? "accepted" : join(read.problems);
  };
  EXPECT_EQ(get_error(R"("needs": "a", "env": {"A": "${a.x}"})"), "accepted");
  EXPECT_EQ(
      get_error(R"("env": {"A": "${a.x}"})"),
      "jobs.b.env.A: ${a.x}: \"a\" is not a node that this node needs: name the node in needs; for the text itself "
      "write $${");
  EXPECT_EQ(get_error(R"("needs": "e", "args": ["", "${e.x}"])"),
            "jobs.b.args[1]: ${e.x}: e is a node with each, which has a list of results: read it in the script");
  EXPECT_EQ(get_error(R"("args": ["${HOME}"])"),
            "jobs.b.args[0]: \"${HOME}\" is not ${NODE.KEY}, as in ${build.size}; for the text itself write $${");
}

TEST(FlowOfJobs, TextsOfRecordsAreNoReferences) {
  Job first = job(7, "first");
  first.env_vars = {{"A", "${first.x} $${y}"}};
  first.args = {"${z}"};
  const auto definition = build_definition("x", {}, {first}, json());
  ASSERT_TRUE(definition) << definition.error().message;
  const auto read = read_plan(*definition);
  ASSERT_TRUE(read.plan) << join(read.problems);
  Flow flow;
  flow.jobs = {7};
  const Job planned = make_node_job(flow, *read.plan, 0);
  EXPECT_EQ(planned.env_vars, first.env_vars);
  EXPECT_EQ(planned.args, first.args);
  first.stdin_description = R"({"bytes":1})";
  EXPECT_NE(build_definition("x", {}, {first}, json()).error().message.find("cannot adopt a job that brings files"),
            std::string::npos);
}

TEST(FlowOfJobs, NodesAreInTheOrderOfTheJobs) {
  const auto definition = build_definition(
      "", {{"A", "b"}}, {job(30, "last.py", {7, 8}), job(8, "twin"), job(7, "first"), job(9, "twin", {7})},
      json::parse(R"({"30": {"when": {"key": "7.size", "less_than": 3}, "on_error": "continue"}})"));
  ASSERT_TRUE(definition) << definition.error().message;
  const auto read = read_plan(*definition);
  ASSERT_TRUE(read.plan) << join(read.problems);
  EXPECT_EQ(names(*read.plan, {0, 1, 2, 3}), (Names{"job30", "job8", "first", "job9"}));
  EXPECT_EQ(names(*read.plan, read.plan->nodes[0].needs), (Names{"first", "job8"}));
  EXPECT_EQ(read.plan->nodes[0].when.at(0).node, 2U);
  EXPECT_EQ(read.plan->nodes[0].on_error, OnError::proceed);
}

TEST(FlowOfJobs, InvalidJobIsNamed) {
  const auto message = [](const std::vector<Job>& jobs, const std::string& nodes) {
    const auto definition = build_definition("x", {}, jobs, json::parse(nodes));
    return definition ? std::string("accepted") : definition.error().message;
  };
  EXPECT_EQ(message({}, "null"), "jobs: is empty: give the flow at least one");
  EXPECT_EQ(message({job(1, "a", {99})}, "null"),
            "job 1: dependends: 99 is not a job of this flow: add it, or remove it from dependends");
  EXPECT_EQ(message({job(1, "build")}, R"({"biuld": {}})"),
            "nodes.\"biuld\": \"biuld\" is not the id or name of a job of this flow; did you mean \"build\"?");
  EXPECT_NE(message({job(1, "a")}, R"([{"id": 1, "script": "x"}])").find("a field of the job's record"),
            std::string::npos);
  EXPECT_NE(message({job(1, "a")}, R"([{"id": 1}, {"name": "a"}])").find("named twice"), std::string::npos);
  EXPECT_EQ(message({job(1, "a")}, "7"), "nodes: is neither a map nor a list");
}

}  // namespace
}  // namespace mycojobs
