// Nodes for each element of a list: parsing the definition, and running it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "flow/run_world.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

using Verb = FlowControl::Verb;

std::string each_refusal(const std::string& yaml) {
  try {
    (void)plan_of_yaml(yaml);
    return "accepted";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}
std::string of_jobs(const std::string& jobs) {
  return each_refusal("name: x\ndefaults: {type: python}\njobs:\n" + jobs);
}

constexpr const char* kDynamic = R"(
name: x
defaults: {type: python}
jobs:
  list: {script: ok}
  parts: {each: list.files, max: 3, script: ok}
  sum: {needs: parts, script: ok}
)";

TEST(Each, LiteralListHasANodeForEachElement) {
  RunWorld deployment(R"(
name: x
jobs:
  parts: {each: [10, "b", {c: 1}], type: python, script: ok}
  sum: {needs: parts, type: python, script: ok}
)");
  ASSERT_EQ(deployment.plan.nodes.size(), 5U);
  EXPECT_EQ(deployment.plan.nodes[1].name, "parts[0]");
  EXPECT_EQ(deployment.plan.nodes[0].elements, (std::vector<std::string>{"10", "\"b\"", "{\"c\":1}"}));
  EXPECT_EQ(deployment.plan.job_at(2).script, "ok");
  EXPECT_EQ(deployment.plan.element_index(2), 1U);
  deployment.start();
  EXPECT_EQ(deployment.describe_node("parts"), "completed ok");
  EXPECT_EQ(deployment.describe_node("parts[2]"), "dispatched queued");
  for (const char* part : {"parts[0]", "parts[2]"}) deployment.end_job(part);
  EXPECT_EQ(deployment.describe_node("sum"), "pending dependencies") << "the node waits for all elements";
  deployment.end_job("parts[1]");
  EXPECT_EQ(deployment.describe_node("sum"), "dispatched queued");
  deployment.end_job("sum");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_TRUE(deployment.violations.empty()) << deployment.violations.front();
}

TEST(Each, MapYieldsKeysAndValuesInOrder) {
  const FlowPlan plan = plan_of_yaml("name: x\njobs: {p: {each: {b: 1, a: 2}, type: python, script: ok}}\n");
  EXPECT_EQ(plan.nodes[0].elements, (std::vector<std::string>{R"({"key":"a","value":2})", R"({"key":"b","value":1})"}));
}

TEST(Each, ResultListSetsTheNumberOfNodes) {
  RunWorld deployment(kDynamic);
  deployment.start();
  EXPECT_TRUE(has_not_started(deployment.plan, deployment.run, deployment.index("parts[0]")));
  deployment.end_job("list", "finished", {{"files", R"(["a","b"])"}});
  EXPECT_EQ(deployment.describe_node("parts[1]"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("parts[2]"), "cancelled absent");
  EXPECT_TRUE(has_not_started(deployment.plan, deployment.run, deployment.index("parts[2]")));
  deployment.end_job("parts[0]");
  deployment.end_job("parts[1]");
  deployment.end_job("sum");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  deployment.crash();
  EXPECT_TRUE(deployment.violations.empty()) << deployment.violations.front();
}

TEST(Each, EmptyListRunsNothingAndReleasesDependents) {
  RunWorld deployment(kDynamic);
  deployment.start();
  deployment.end_job("list", "finished", {{"files", "[]"}});
  EXPECT_EQ(deployment.describe_node("parts"), "completed ok");
  EXPECT_EQ(deployment.describe_node("sum"), "dispatched queued");
}

TEST(Each, NonListFailsTheNodeWithAReason) {
  const std::pair<TextMap, const char*> kRows[] = {
      {{}, "list.files is missing: there is no list of elements"},
      {{{"files", "7"}}, "list.files is 7, no list and no map"},
      {{{"files", "[18446744073709551617]"}},
       "list.files: the integer 18446744073709551617 does not fit 64 bits: quote it as text"},
      {{{"files", "[1,2,3,4]"}},
       "list.files has 4 elements, more than 3: give the node a larger max (at most 5000), or "
       "the list fewer"},
  };
  for (const auto& [values, output] : kRows) {
    RunWorld deployment(kDynamic);
    deployment.start();
    deployment.end_job("list", "finished", values);
    EXPECT_EQ(deployment.describe_node("parts"), "failed each_failed");
    EXPECT_EQ(deployment.node("parts").error, output);
    EXPECT_EQ(deployment.describe_node("sum"), "failed dependency_failed");
    EXPECT_EQ(deployment.describe_flow(), "error failed");
    EXPECT_TRUE(deployment.violations.empty()) << deployment.violations.front();
  }
}

TEST(Each, FailedElementIsRetriedAlone) {
  RunWorld deployment(kDynamic);
  deployment.start();
  deployment.end_job("list", "finished", {{"files", "[1,2]"}});
  deployment.end_job("parts[0]");
  deployment.fail_job("parts[1]");
  EXPECT_EQ(deployment.describe_flow(), "error failed");
  ASSERT_TRUE(deployment.control(Verb::retry, "parts[1]"));
  EXPECT_EQ(deployment.describe_node("parts[0]"), "completed ok");
  EXPECT_EQ(deployment.describe_node("parts[1]"), "dispatched queued");
  EXPECT_EQ(deployment.describe_node("parts[2]"), "cancelled absent") << "there is still no third element";
  deployment.end_job("parts[1]");
  deployment.end_job("sum");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
  EXPECT_TRUE(deployment.violations.empty()) << deployment.violations.front();
}

TEST(Each, ConditionsErrorsAndGatesApplyToEachNode) {
  RunWorld deployment(R"(
name: x
defaults: {type: python}
jobs:
  list: {script: ok}
  parts: {each: list.files, script: ok, on_error: continue, prerequisites: ["signal:go"]}
  none: {needs: parts, log: none, when: {key: parts.count, equals: 0}}
  some: {needs: parts, log: some, when: {key: parts.count, greater_than: 1}}
)");
  EXPECT_EQ(deployment.plan.nodes[deployment.index("parts")].max_elements, kDefaultMaxElements);
  deployment.start();
  deployment.end_job("list", "finished", {{"files", "[1,2]"}});
  EXPECT_EQ(deployment.describe_node("parts"), "pending gate");
  FlowControl signal;
  signal.verb = Verb::signal;
  signal.target = "go";
  signal.payload = R"({"who":12})";
  ASSERT_TRUE(deployment.apply(signal));
  EXPECT_EQ(deployment.run.signals.at("go"), R"({"who":12})");
  deployment.fail_job("parts[0]");
  deployment.end_job("parts[1]");
  EXPECT_EQ(deployment.describe_node("none"), "cancelled skipped");
  EXPECT_EQ(deployment.describe_node("some"), "completed ok");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
}

TEST(Each, SkippedNodeLeavesNothing) {
  RunWorld deployment(R"(
name: x
defaults: {type: python}
jobs:
  list: {script: ok}
  parts: {each: list.files, script: ok, when: {key: list.go, equals: true}}
  sum: {needs: parts, log: sum}
)");
  deployment.start();
  deployment.end_job("list", "finished", {{"files", "[1]"}});
  EXPECT_EQ(deployment.describe_node("parts"), "cancelled skipped");
  EXPECT_EQ(deployment.describe_node("sum"), "cancelled skipped");
  EXPECT_EQ(deployment.describe_flow(), "finished ok");
}

TEST(Each, CommitWritesABoundedNumberOfRecords) {
  std::string jobs = "name: x\ndefaults: {type: python}\njobs:\n  p: {each: [";
  for (int i = 0; i < 50; ++i) jobs += (i == 0 ? "" : ",") + std::to_string(i);
  const FlowPlan plan = plan_of_yaml(jobs + "], script: \"" + std::string(200000, 'x') + "\"}\n");
  const auto first = decide(plan, initial_state(plan), {1, StartRun{"manual", 0}});
  ASSERT_TRUE(first);
  const auto dispatched = std::count_if(first->effects.begin(), first->effects.end(),
                                        [](const Effect& effect) { return effect.kind == Effect::Kind::dispatch; });
  EXPECT_LE(dispatched, 6);
  EXPECT_TRUE(has_immediate_action(plan, first->state));
}

TEST(Each, InvalidEachIsRejected) {
  EXPECT_EQ(of_jobs("  a: {each: 7, script: ok}\n"),
            "jobs.a.each: is the number 7, not a list, a map, inputs.NAME or NODE.KEY");
  EXPECT_EQ(of_jobs("  a: {each: build, script: ok}\n"),
            "jobs.a.each: \"build\" is not NODE.KEY, a list in a result, and not inputs.NAME");
  EXPECT_EQ(of_jobs("  a: {each: biuld.x, script: ok}\n  build: {log: x}\n"),
            "jobs.a.each: there is no node \"biuld\"; did you mean \"build\"?");
  EXPECT_EQ(of_jobs("  a: {each: [1, 2], max: 1, script: ok}\n"),
            "jobs.a.each: has 2 elements, more than its max of 1");
  EXPECT_EQ(of_jobs("  a: {max: 1, script: ok}\n"),
            "jobs.a.max: belongs to each: also name the list from which the nodes are created");
  EXPECT_EQ(of_jobs("  a: {each: [1], max: 5001, script: ok}\n"),
            "jobs.a.max: is the number 5001, not a whole number from 1 to 5000");
  EXPECT_EQ(of_jobs("  a: {each: [1], log: ok}\n"),
            "jobs.a.each: is not a field of a node that has log: only of one with script");
  EXPECT_EQ(of_jobs("  a: {each: [1], script: ok}\n  b: {each: a.x, script: ok}\n"),
            "jobs.b.each: \"a\" is a node for each of a list itself: make the list in a job that needs it");
  EXPECT_EQ(of_jobs("  a: {each: [1], script: ok, compensate: b}\n  b: {script: ok}\n"),
            "jobs.a.compensate: a node with each cannot have one: add it to a node that needs this node and undo all "
            "elements there");
  EXPECT_EQ(of_jobs("  a: {script: ok, on_error: b}\n  b: {each: [1], script: ok}\n"),
            "jobs.b.each: an error node or compensation runs once: it has no each");
  EXPECT_EQ(of_jobs("  a: {each: [1], script: ok}\n  b: {needs: a, log: x, when: {key: a.size, equals: 1}}\n"),
            "jobs.b.when.key: \"a\" is a node with each: it has only count and $status; read its results in a job that "
            "needs it");
  EXPECT_EQ(of_jobs("  a: {each: b.x, script: ok}\n  b: {needs: a, script: ok}\n").substr(0, 51),
            "jobs.b.needs: a cycle of nodes that can never start");
  EXPECT_NE(of_jobs("  l: {script: ok}\n  a: {each: l.x, max: 5000, script: ok}\n  b: {each: l.x, max: 5000, script: "
                    "ok}\n  c: {each: l.x, max: 5000, script: ok}\n  d: {needs: [a, b, c], log: x}\n")
                .find("jobs.d.needs: 15003 nodes, including the nodes that each can create, are more than 10000"),
            std::string::npos);
}

TEST(Defaults, ApplyToJobsWithoutTheirOwnValue) {
  const FlowPlan plan = plan_of_yaml(R"(
name: x
defaults: {type: python, timeout: 1m, retries: 2, env: {A: "1", B: "1"}, on_error: continue, policy: {memory: 64MiB}}
jobs:
  a: {script: ok}
  b: {script: ok, type: v, timeout: 5s, retries: 0, env: {B: "2"}, on_error: stop, policy: {memory: 32MiB}}
  c: {log: not a job}
)");
  const PlanNode &a = plan.nodes[0], &b = plan.nodes[1], &c = plan.nodes[2];
  EXPECT_EQ(a.job.script_type, "python");
  EXPECT_EQ(a.job.timeout, 60U);
  EXPECT_EQ(a.job.retries, 2U);
  EXPECT_EQ(a.on_error, OnError::proceed);
  EXPECT_EQ(b.job.script_type, "v");
  EXPECT_EQ(b.job.timeout, 5U);
  EXPECT_EQ(b.job.retries, 0U);
  EXPECT_EQ(b.job.env_vars, (TextMap{{"A", "1"}, {"B", "2"}}));
  EXPECT_EQ(b.on_error, OnError::stop);
  EXPECT_NE(b.job.policy.find("32MiB"), std::string::npos);
  EXPECT_EQ(c.on_error, OnError::stop) << "defaults apply only to jobs";
}

TEST(Defaults, InvalidDefaultIsReportedOnce) {
  EXPECT_EQ(
      each_refusal("name: x\ndefaults: {type: python, retries: many}\njobs: {a: {script: ok}, b: {script: ok}}\n"),
      "defaults.retries: is the text \"many\", not a whole number from 0 to 255");
  EXPECT_EQ(each_refusal("name: x\ndefaults: {script: x}\njobs: {a: {log: x}}\n").substr(0, 62),
            "defaults.script: is not a common field of jobs; the fields are");
  EXPECT_EQ(each_refusal("name: x\ndefaults: 7\njobs: {a: {log: x}}\n"),
            "defaults: is the number 7, not a map of fields of a job, such as {type: python, retries: 1}");
}

}  // namespace
}  // namespace mycojobs
