// Views of flows in a store: the state of each node, the reasons with their causes, and records changed by other
// clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "flow/progress_stage.h"
#include "inspect/flow_drawing.h"
#include "inspect/flow_view.h"

namespace mycojobs {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FlowShow : public ::testing::Test {
 protected:
  FlowStage stage_;

  void run(const std::string& yaml, int rounds = 40) {
    stage_.request_run("f", yaml);
    (void)stage_.play(rounds);
    ASSERT_TRUE(stage_.known("f"));
  }
  Id flow() const { return stage_.flow("f"); }
  std::string key(const std::string& prefix) const { return prefix + std::to_string(flow()); }
  void control(FlowControl::Verb verb, const std::string& target = "", const std::string& comment = "") {
    FlowControl asked;
    asked.verb = verb;
    asked.target = target;
    asked.actor = 12;
    asked.admin = true;
    asked.comment = comment;
    ProgressRequest request;
    request.control = asked;
    const auto done = stage_.progress_flow("f", request);
    ASSERT_TRUE(done) << done.error().message;
  }
  FlowView view() {
    auto looked = inspect_flow(stage_.flows(), stage_.store(), 1, flow());
    EXPECT_TRUE(looked) << looked.error().message;
    return looked.value_or(FlowView());
  }
  std::vector<FlowReason> reasons() {
    auto output = explain_flow(stage_.flows(), stage_.store(), 1, flow());
    EXPECT_TRUE(output) << output.error().message;
    const auto known = flow_causes();
    for (const FlowReason& reason : output.value_or(std::vector<FlowReason>())) {
      EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const auto& row) { return row.cause == reason.cause; }))
          << reason.cause;
      EXPECT_FALSE(reason.reason.empty());
      EXPECT_FALSE(reason.next_action.empty()) << reason.cause;
    }
    return output.value_or(std::vector<FlowReason>());
  }
  // Formats each reason as "cause node: reason; next: ...".
  std::vector<std::string> output() {
    std::vector<std::string> lines;
    for (const FlowReason& reason : reasons())
      lines.push_back(reason.cause + " " + reason.node + ": " + reason.reason + "; next: " + reason.next_action);
    return lines;
  }
  static std::string names(const FlowView& view, const std::vector<std::uint32_t>& list) {
    std::string out;
    for (std::uint32_t index : list) out += (out.empty() ? "" : " ") + view.nodes.at(index).name;
    return out;
  }
  static std::string place(const FlowView& view, const std::string& name) {
    for (const NodeView& node : view.nodes) {
      if (node.name == name) return std::string(to_string(node.status)) + " " + node.detail;
    }
    return "absent";
  }
};

constexpr const char* kManual = R"(
name: manual
jobs:
  build: {script: "ok", type: python}
  long: {script: "hold", type: python}
  ok: {needs: [build], approval: {approvers: [7], comment: "ship?"}}
  hold: {needs: [build], pause: "look"}
  gated: {needs: [build], script: "ok", type: python, prerequisites: ["signal:go"]}
  legal: {needs: [build], script: "ok", type: python, prerequisites: ["approval:legal"]}
  nap: {needs: [build], wait: 1h}
  cobol: {needs: [build], script: "x", type: cobol}
  last: {needs: [ok, hold], script: "ok", type: python}
)";

TEST_F(FlowShow, EachNodeHasItsState) {
  run(kManual);
  const FlowView seen = view();
  EXPECT_EQ(seen.status + " " + seen.detail, "started running");
  EXPECT_EQ(place(seen, "build"), "completed ok");
  EXPECT_THAT(place(seen, "long"), HasSubstr("running "));
  EXPECT_EQ(place(seen, "ok"), "dispatched approval");
  EXPECT_EQ(place(seen, "gated"), "pending gate");
  EXPECT_EQ(place(seen, "cobol"), "dispatched queued");
  EXPECT_EQ(names(seen, seen.applied), "build");
  EXPECT_EQ(names(seen, seen.visible), "cobol");
  EXPECT_EQ(names(seen, seen.claimed) + names(seen, seen.expired), "long");
  EXPECT_EQ(names(seen, seen.planned), "last");
  EXPECT_EQ(names(seen, seen.waiting), "gated nap");
  EXPECT_EQ(names(seen, seen.manual), "hold legal ok");
  EXPECT_THAT(seen.anomalies, IsEmpty());
  EXPECT_FALSE(draw_flow(seen, GraphFormat::text).empty());
  EXPECT_TRUE(nlohmann::json::accept(to_json(seen).dump()));
}

TEST_F(FlowShow, EveryWaitIsExplainedWithItsRemedy) {
  run(kManual);
  const auto lines = output();
  EXPECT_THAT(lines, Contains(HasSubstr("approval ok: node ok waits for approval since ")));
  EXPECT_THAT(lines, Contains(HasSubstr("`mycojobs flow approve 1 ok --actor ID`")));
  EXPECT_THAT(lines, Contains(HasSubstr("approval legal: node legal waits for approval:legal since ")));
  EXPECT_THAT(lines, Contains(HasSubstr("pause hold: node hold is a pause since ")));
  EXPECT_THAT(lines, Contains(HasSubstr("`mycojobs flow resume 1 hold`")));
  EXPECT_THAT(lines, Contains(HasSubstr("signal gated: node gated waits for signal:go since ")));
  EXPECT_THAT(lines, Contains(HasSubstr("`mycojobs flow signal 1 go`")));
  EXPECT_THAT(lines, Contains(HasSubstr("timer nap: node nap waits 59 min more")));
  EXPECT_THAT(lines, Contains(HasSubstr("no_runner cobol: node cobol (job:12:2): no runner serves queue:cobol")));
  EXPECT_THAT(lines, Contains(HasSubstr("lease of runner ")));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("job_lost"))));
  for (const FlowReason& reason : reasons()) {
    if (reason.node == "ok") {
      EXPECT_THAT(reason.evidence, Contains(HasSubstr("actor 7 may decide")));
    }
  }
}

TEST_F(FlowShow, PauseNamesTheActorAndReason) {
  run(kManual);
  control(FlowControl::Verb::pause, "", "lunch");
  const auto lines = output();
  EXPECT_THAT(lines, Contains(::testing::AllOf(HasSubstr("paused : paused by 12 since "), HasSubstr(": lunch;"),
                                               HasSubstr("`mycojobs flow resume 1`"))));
  EXPECT_EQ(view().detail, "paused");
}

TEST_F(FlowShow, MissingCoordinatorIsShownFirst) {
  stage_.request_run("f", kManual);
  (void)stage_.play(40);
  stage_.clock().now += 3'600'000 / 2;
  EXPECT_THAT(output().front(), HasSubstr("coordinator_missing : no coordinator is the leader of context 1"));
}

TEST_F(FlowShow, FailureIsNamedWithoutItsConsequences) {
  run("name: bad\njobs:\n  a: {script: fail, type: python}\n  b: {needs: [a], script: ok, type: python}\n");
  const auto lines = output();
  EXPECT_THAT(lines.front(), HasSubstr("failed : it failed because of a: "));
  EXPECT_THAT(lines.front(), HasSubstr("`mycojobs flow retry 1`"));
  EXPECT_THAT(lines, Contains(HasSubstr("node_failed a: node a failed: exit: exit code 1")));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("node_failed b"))));
  EXPECT_EQ(place(view(), "b"), "failed dependency_failed");
}

TEST_F(FlowShow, StopIsExplainedByItsFailure) {
  run("name: bad\njobs:\n  a: {script: fail, type: python}\n  b: {script: hold, type: python}\n");
  const auto lines = output();
  EXPECT_THAT(lines, Contains(HasSubstr("stopping : stopped by the failure of a; running nodes end first")));
  control(FlowControl::Verb::cancel, "", "enough");
  EXPECT_THAT(output(), Contains(HasSubstr("cancelling : it is being cancelled by 12 since ")));
}

TEST_F(FlowShow, EndIsShown) {
  run("name: good\njobs:\n  a: {script: ok k=v, type: python}\n");
  const auto lines = output();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines.front(), HasSubstr("finished : flow 1 has finished; next: nothing; `mycojobs flow result 1`"));
  EXPECT_EQ(view().detail, "completed");
}

TEST_F(FlowShow, ConcurrencyLimitIsNamed) {
  run("name: narrow\nmax_parallel: 1\njobs:\n  a: {script: hold, type: python}\n  b: {script: ok, type: python}\n");
  EXPECT_THAT(output(), Contains(HasSubstr("max_parallel b: node b is ready, and 1 of 1 places are taken")));
}

TEST_F(FlowShow, ChildIsReferenced) {
  run("name: p\njobs:\n  kid: {flow: {name: k, jobs: {a: {script: hold, type: python}}}}\n");
  EXPECT_THAT(output(), Contains(::testing::AllOf(HasSubstr("child_flow kid: node kid waits for its child, flow 2"),
                                                  HasSubstr("`mycojobs flow explain 2`"))));
}

TEST_F(FlowShow, TimelineShowsActorsAndActions) {
  run(kManual);
  control(FlowControl::Verb::approve, "ok", "ship it");
  const auto rows = flow_timeline(stage_.flows(), stage_.store(), 1, flow()).value();
  std::vector<std::string> lines;
  for (const TimelineRow& row : rows) lines.push_back(row.node + ": " + row.text);
  EXPECT_THAT(lines.front(), HasSubstr("started"));
  EXPECT_THAT(lines, Contains("build: completed ok"));
  EXPECT_THAT(lines, Contains(": approved ok by 12: ship it"));
  EXPECT_EQ(flow_timeline(stage_.flows(), stage_.store(), 1, flow(), 3).value().size(), 3U);
}

TEST_F(FlowShow, QuestionsAndAnswersAreShown) {
  run(kManual);
  const auto node = [this](const std::string& name) {
    for (NodeView& each : view().nodes) {
      if (each.name == name) return each;
    }
    return NodeView();
  };
  EXPECT_EQ(node("ok").prompt, "ship?");
  EXPECT_EQ(node("hold").prompt, "look");
  EXPECT_EQ(format_node_state(node("ok"), 0), "waits for approval");
  for (const FlowReason& reason : reasons()) {
    if (reason.node != "ok" && reason.node != "hold") continue;
    EXPECT_THAT(reason.evidence, Contains(reason.node == "ok" ? "asks: ship?" : "asks: look"));
  }
  control(FlowControl::Verb::approve, "ok", "looks good");
  control(FlowControl::Verb::approve, "legal", "read it");
  control(FlowControl::Verb::resume, "hold", "seen");
  ASSERT_EQ(node("ok").answers.size(), 1U);
  EXPECT_EQ(describe(node("ok").answers[0]), "approved by 12: looks good");
  EXPECT_EQ(describe(node("legal").answers.at(0)), "approved by 12: read it") << "a gate of a job";
  EXPECT_EQ(describe(node("hold").answers.at(0)), "resumed by 12: seen");
  EXPECT_TRUE(node("gated").answers.empty());
  const auto shown = to_json(node("ok"));
  EXPECT_EQ(shown["asks"], "ship?");
  EXPECT_EQ(shown["answers"][0]["comment"], "looks good");
  EXPECT_EQ(shown["answers"][0]["actor"], 12);
  std::vector<std::string> lines;
  const auto rows = flow_timeline(stage_.flows(), stage_.store(), 1, flow()).value();
  for (const TimelineRow& row : rows) lines.push_back(row.node + ": " + row.text);
  EXPECT_THAT(lines, Contains("ok: waits for approval: ship?"));
  EXPECT_THAT(lines, Contains("legal: waits for approval:legal"));
  control(FlowControl::Verb::pause, "", "lunch");
  ASSERT_TRUE(view().hold_request);
  EXPECT_EQ(describe(*view().hold_request), "paused by 12: lunch");
  EXPECT_EQ(to_json(view())["said"]["comment"], "lunch");
}

TEST_F(FlowShow, AnswersAreShownBeforeTheRunIsAllocated) {
  run("name: parts\njobs:\n  list: {script: hold, type: python}\n"
      "  parts: {each: list.numbers, max: 50, script: ok, type: python}\n"
      "  zero: {approval: \"go?\"}\n  zeta: {pause: look}\n");
  control(FlowControl::Verb::approve, "zero", "yes");
  control(FlowControl::Verb::resume, "zeta", "seen");
  for (const NodeView& node : view().nodes) {
    EXPECT_EQ(node.answers.size(), node.name == "zero" || node.name == "zeta" ? 1U : 0U) << node.name;
  }
}

TEST_F(FlowShow, StatusIsOneWord) {
  run("name: good\njobs:\n  a: {script: hold, type: python}\n");
  EXPECT_THAT(format_headline(view()), HasSubstr("flow 1 good  running  "));
  for (const FlowDisplayState& row : flow_display_states())
    EXPECT_EQ(to_display_state(row.status, row.state), row.state);
  EXPECT_EQ(to_display_state(FlowStatus::finished, "ok"), "completed");
  EXPECT_EQ(to_display_state(FlowStatus::error, "nonsense"), "failed");
  EXPECT_EQ(to_display_state(FlowStatus::started, ""), "running");
  EXPECT_EQ(to_display_state(FlowStatus::dispatched, ""), "new");
}

TEST_F(FlowShow, RecordShowsTheStateOfEachNode) {
  run("name: states\njobs:\n  a: {script: hold, type: python}\n  b: {needs: a, script: ok, type: python}\n"
      "  c: {script: ok, type: python}\n  d: {script: x, type: cobol}\n"
      "  e: {script: ok, type: python, prerequisites: [\"redis:ready\"]}\n  f: {needs: c, script: ok, type: python}\n",
      4);
  const auto states = [this] {
    std::map<std::string, std::string> all;
    for (const auto& node : nlohmann::json::parse(stage_.field("f", "nodes")))
      all[node["name"].get<std::string>()] = node["node_status"].get<std::string>();
    return all;
  };
  stage_.run_jobs();
  auto now = states();
  EXPECT_EQ(now["a"], "running");
  EXPECT_EQ(now["b"], "pending");
  EXPECT_EQ(now["d"], "dispatched");
  EXPECT_EQ(now["e"], "pending") << "the prerequisites of the node are not met";
  for (int i = 0; i < 20; ++i) {
    stage_.run_jobs();
    stage_.clock().now += 1000;
    stage_.coordinate();
  }
  now = states();
  EXPECT_EQ(now["a"], "running") << "also after the coordinator has advanced other nodes";
  EXPECT_EQ(now["c"], "completed");
  EXPECT_EQ(now["f"], "completed");
}

TEST_F(FlowShow, MissingFlowIsNotFound) {
  EXPECT_EQ(inspect_flow(stage_.flows(), stage_.store(), 1, 77).error().code, Code::not_found);
  EXPECT_EQ(explain_flow(stage_.flows(), stage_.store(), 1, 77).error().code, Code::not_found);
  EXPECT_EQ(flow_timeline(stage_.flows(), stage_.store(), 1, 77).error().code, Code::not_found);
}

TEST_F(FlowShow, RecordNodesAreShownWithoutADefinition) {
  run(kManual);
  stage_.run_command({"DEL", "mj:definition:" + stage_.field("f", "definition_hash")});
  const FlowView seen = view();
  EXPECT_FALSE(seen.has_plan);
  EXPECT_EQ(seen.nodes.size(), 9U);
  EXPECT_THAT(seen.anomalies, Contains(HasSubstr("definition: ")));
  EXPECT_THAT(output(), Contains(HasSubstr("definition_missing : ")));
  stage_.run_command(
      {"HSET", "mj:definition:" + stage_.field("f", "definition_hash"), "text", "{\"name\": \"other\"}"});
  EXPECT_FALSE(view().has_plan);
}

TEST_F(FlowShow, InvalidJournalEntriesAreListed) {
  run(kManual);
  const std::string journal = key("mj:flow-journal:");
  const auto add = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"XADD", journal, "*"});
    stage_.run_command(words);
  };
  add({"f", "no_such_kind", "at", "5"});
  add({"f", "node_completed", "at", "x", "n", "99999", "m", "{}"});
  add({"f", "node_completed", "at", "5", "n", "-1", "m", "{]"});
  add({"f", "node_failed", "n", "18446744073709551615"});
  add({"f", "node_failed", "at", "99999999999999999999", "n", "0", "m", "[1]"});
  add({"f", "ended", "at", "5", "m", "{\"status\": \"finished\"}"});
  add({"f", "control", "at", "5", "m", R"({"verb": {"x": 1}, "actor": [1], "comment": 7, "payload": "s3cret"})"});
  add({"nothing", "known"});
  add({"f", std::string("\xff\x1b[2J\0", 6), "at", "5"});
  const FlowView seen = view();
  EXPECT_GE(seen.anomalies.size(), 5U);
  EXPECT_EQ(place(seen, "build"), "completed ok");
  EXPECT_THAT(output(), Contains(HasSubstr("anomaly : ")));
  const auto rows = flow_timeline(stage_.flows(), stage_.store(), 1, flow());
  ASSERT_TRUE(rows);
  for (const TimelineRow& row : *rows) EXPECT_THAT(row.text, Not(HasSubstr("s3cret")));
}

TEST_F(FlowShow, RecordChangesOfOtherClientsAreListed) {
  run(kManual);
  const std::string record = key("flow:");
  stage_.run_command({"DEL", stage_.find_job_key("f", "cobol")});
  stage_.run_command({"DEL", "mj:claim:" + stage_.find_job_key("f", "cobol")});
  stage_.run_command({"DEL", stage_.find_job_key("f", "long")});
  stage_.run_command({"SET", stage_.find_job_key("f", "long"), "text"});
  EXPECT_THAT(output(), Contains(HasSubstr("job_lost cobol: ")));
  stage_.run_command({"HSET", record, "jobs", "[1,\"x\",-5,4294967296]", "nodes", "{}", "id", "77", "status",
                      "nonsense", "result", "[", "started_ms", "-1"});
  const FlowView seen = view();
  EXPECT_FALSE(seen.anomalies.empty());
  EXPECT_EQ(seen.record.id, flow());
  stage_.run_command({"HSET", record, "jobs", "[]", "caller_id", "0", "definition_hash", ""});
  EXPECT_TRUE(view().has_plan) << "the mark of the record names its definition";
  stage_.run_command({"DEL", record});
  stage_.run_command({"RPUSH", record, "x"});
  (void)inspect_flow(stage_.flows(), stage_.store(), 1, flow());
  (void)explain_flow(stage_.flows(), stage_.store(), 1, flow());
  stage_.run_command({"DEL", key("mj:flow-journal:")});
  stage_.run_command({"SET", key("mj:flow-journal:"), "x"});
  (void)inspect_flow(stage_.flows(), stage_.store(), 1, flow());
  (void)flow_timeline(stage_.flows(), stage_.store(), 1, flow());
}

TEST_F(FlowShow, TenThousandNodesAreReadExplainedAndDrawn) {
  std::string yaml = "name: wide\njobs:\n  first: {script: hold, type: python}\n";
  for (int i = 0; i < 9999; ++i)
    yaml += "  n" + std::to_string(i) + ": {needs: [" + (i % 100 == 0 ? "first" : "n" + std::to_string(i - i % 100)) +
            "], script: ok, type: python}\n";
  run(yaml, 3);
  const FlowView seen = view();
  EXPECT_EQ(seen.nodes.size(), 10000U);
  EXPECT_EQ(seen.planned.size(), 9999U);
  EXPECT_LE(reasons().size(), 20U);
  const std::string text = draw_flow(seen, GraphFormat::text);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_EQ(to_json(seen)["nodes"].size(), 10000U);
}

}  // namespace
}  // namespace mycojobs
