// The workflow commands that need no Redis, with the examples and with invalid input.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "e2e/client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class WorkflowCommands : public ::testing::Test {
 protected:
  WorkflowCommands() {
    for (const char* name : {"order", "choreography"})
      fs::copy(fs::path(mj::test::source_folder()) / "examples" / "workflow" / name, folder_ / name);
  }
  ProcessResult run_workflow_command(std::vector<std::string> words) {
    words.insert(words.begin(), {program_path(), "workflow"});
    return run(folder_, words);
  }
  Json run_json(std::vector<std::string> words, int code) {
    words.emplace_back("--json");
    const ProcessResult result = run_workflow_command(words);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    auto parsed = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
    return parsed.is_discarded() ? Json::object() : parsed;
  }
  std::string replace_in_file(const std::string& file, const std::string& old_text, const std::string& new_text) {
    std::string text = read_file(folder_ / file);
    const auto position = text.find(old_text);
    EXPECT_NE(position, std::string::npos) << old_text;
    if (position != std::string::npos) text.replace(position, old_text.size(), new_text);
    return folder_.write(file, text);
  }

  TempDir folder_;
  const std::string manifest_ = folder_ / "order/order.json", scenarios_ = folder_ / "order/order.test.json";
};

TEST_F(WorkflowCommands, CheckReportsContentsOrAllProblems) {
  expect_result(run_workflow_command({"check", manifest_}), 0,
                "order/order@1: 1 workflow, 4 effects, 2 subscriptions, manifest ");
  const Json valid = run_json({"check", manifest_}, 0);
  EXPECT_TRUE(valid["ok"].get<bool>());
  EXPECT_EQ(valid["workflows"][0]["name"], "order/order@1");
  EXPECT_EQ(valid["hash"].get<std::string>().size(), 64U);
}

TEST_F(WorkflowCommands, ProblemsAreReportedWithFileLineAndPath) {
  replace_in_file("order/order.json", R"("order": {"$ref": "order/Placed@1"})", R"("order": {"$ref": "order/Gone@1"})");
  replace_in_file("order/order.json", R"("title": "Cancelled")", R"("title": "Placed")");
  replace_in_file("order/order.json", R"("stock/release@1", "payment)", R"("stock/relase@1", "payment)");
  replace_in_file("order/order.json", R"("module": "charge.py")", R"("module": "gone.py")");
  replace_in_file("order/order.lua", "local function fail(state)", "local function fail(state");
  const ProcessResult result = run_workflow_command({"check", manifest_});
  for (const char* expected :
       {"order.json:35:9: ", "schemas.order/State@1.properties.order", "order/Gone@1", "schemas.order/Event@1.oneOf[1]",
        "effects_emitted[1]: the effect \"stock/relase@1\" is not declared; did you mean",
        "effects[2].module: ", "gone.py: no such file", "order.lua:31:1: "})
    expect_result(result, 65, expected);
  const Json output = run_json({"check", manifest_}, 65);
  EXPECT_FALSE(output["ok"].get<bool>());
  EXPECT_EQ(output["problems"].size(), 5U) << output.dump(2);
  for (const auto& problem : output["problems"]) EXPECT_GT(problem["line"].get<int>(), 0) << problem.dump();
}

TEST_F(WorkflowCommands, HistoryIsReplayedWithoutRedis) {
  const std::string history = folder_ / "h.jsonl";
  ASSERT_EQ(run_workflow_command({"test", scenarios_, "--name", "small order", "--history", history}).code, 0);
  expect_result(run_workflow_command({"verify-replay", "--history", history}), 0, "the same outputs");
  const Json replay_output = run_json({"verify-replay", "--history", history}, 0);
  EXPECT_TRUE(replay_output["same"].get<bool>());
  EXPECT_GT(replay_output["steps"].get<int>(), 1);
  EXPECT_GT(replay_output["entries"].get<int>(), 4);
  // Changes an output in the recorded history, so the code no longer matches it.
  std::string text = read_file(history);
  const auto position = text.find("pc = 'reserving'");
  ASSERT_NE(position, std::string::npos);
  text.replace(position, 16, "pc = 'rEserving'");
  folder_.write("h.jsonl", text);
  expect_result(run_workflow_command({"verify-replay", "--history", history}), 65, "h.jsonl: ");
  expect_result(run_workflow_command({"verify-replay"}), 65, "give a WORKFLOW, or --history FILE");
  expect_result(run_workflow_command({"verify-replay", "--history", folder_ / "none"}), 66, "none");
}

TEST_F(WorkflowCommands, CheckRunsTheTopLevelAndFindsTheEntrypoint) {
  replace_in_file("order/order.json", R"("entrypoint": "step")", R"("entrypoint": "stp")");
  expect_result(run_workflow_command({"check", manifest_}), 65,
                "impl.entrypoint: order.lua: it defines no function stp(state, event, ctx)");
  replace_in_file("order/order.json", R"("entrypoint": "stp")", R"("entrypoint": "step")");
  replace_in_file("order/order.lua", "local on = {}", "local on = {} error('at the top')");
  expect_result(run_workflow_command({"check", manifest_}), 65, "order.lua:46:1: at the top");
  replace_in_file("order/order.lua", "error('at the top')", "while true do end");
  expect_result(run_workflow_command({"check", manifest_}), 65,
                "order.lua:46:1: its top level takes more than 50000000 instructions");
  replace_in_file("order/order.lua", "while true do end", "");
  replace_in_file("order/order.lua", "function step(state, event)", "function step(state, event) while true do end");
  expect_result(run_workflow_command({"check", manifest_}), 0, "order/order@1");
}

TEST_F(WorkflowCommands, CheckReadsOnlyFilesBelowTheManifest) {
  replace_in_file("order/order.json", R"("module": "charge.py")", R"("module": "../../etc/passwd")");
  expect_result(run_workflow_command({"check", manifest_}), 65, "is no path below the manifest");
  expect_result(run_workflow_command({"check", folder_ / "gone.json"}), 66, "no such file");
  expect_result(run_workflow_command({"check", folder_.write("bad.json", "{\"name\": \n  x}")}), 65, "bad.json:2:3");
  expect_result(run_workflow_command({"check", folder_.write("twice.json", "{\"name\": 1, \"name\": 2}")}), 65,
                "twice.json");
}

TEST_F(WorkflowCommands, TestPlaysTheExamples) {
  const ProcessResult result = run_workflow_command({"test", scenarios_, folder_ / "choreography/shop.test.json"});
  expect_result(result, 0, "all as expected");
  EXPECT_NE(result.out.find("ok    a small order is reserved and paid"), std::string::npos) << result.out;
  const Json output = run_json({"test", scenarios_, folder_ / "choreography/shop.test.json"}, 0);
  EXPECT_TRUE(output["ok"].get<bool>());
  EXPECT_EQ(output["played"], 12);
  EXPECT_EQ(output["files"][1]["scenarios"].size(), 3U);
  EXPECT_GT(output["files"][0]["scenarios"][0]["steps"].get<int>(), 3);
  EXPECT_EQ(run_json({"test", scenarios_, "--name", "do not meet"}, 0)["played"], 1);
  expect_result(run_workflow_command({"test", scenarios_, "--name", "odd"}), 66, "no scenario has \"odd\" in its name");
}

TEST_F(WorkflowCommands, MismatchHasItsPlaceAndDifference) {
  replace_in_file("order/order.test.json", R"("pc": "paid", "attempt": 1)", R"("pc": "paid", "attempt": 2)");
  const ProcessResult result = run_workflow_command({"test", scenarios_});
  expect_result(result, 1, "FAIL  a small order is reserved and paid");
  for (const char* expected : {"order.test.json:28:49: scenarios[0].steps[2].expect.state.order 7.attempt: ",
                               "-   \"attempt\": 2,", "+   \"attempt\": 1,", "9 scenarios", "1 failed"})
    expect_result(result, 1, expected);
  const Json output = run_json({"test", scenarios_}, 1);
  EXPECT_EQ(output["failed"], 1);
  const Json problem = output["files"][0]["scenarios"][0]["problems"][0];
  EXPECT_EQ(problem["line"], 28);
  EXPECT_NE(problem["expected"], problem["got"]);
}

TEST_F(WorkflowCommands, InvalidScenarioOrManifestIsNotPlayed) {
  replace_in_file("order/order.test.json", "\"wait\": \"15m\"", "\"wiat\": \"15m\"");
  expect_result(run_workflow_command({"test", scenarios_}), 1,
                "scenarios[0].steps[3].wiat: is an unknown field; did you mean \"wait\"?");
  const Json output = run_json({"test", scenarios_}, 1);
  EXPECT_EQ(output["played"], 0);
  EXPECT_EQ(output["files"][0]["problems"].size(), 1U);
  replace_in_file("order/order.test.json", "\"wiat\"", "\"wait\"");
  replace_in_file("order/order.lua", "function step", "function stp");
  expect_result(run_workflow_command({"test", scenarios_}), 1, "it defines no function step");
  expect_result(run_workflow_command({"test"}), 64, "FILE");
}

TEST_F(WorkflowCommands, NewManifestIsPlayedOnTheOldScenarios) {
  fs::copy(folder_ / "order", folder_ / "next");
  replace_in_file("next/order.lua", "local ATTEMPTS = 3", "local ATTEMPTS = 2");
  const ProcessResult result = run_workflow_command({"test", scenarios_, "--manifest", folder_ / "next/order.json"});
  expect_result(result, 1, "FAIL  a charge that fails is tried three times");
  expect_result(result, 1, "1 failed");
}

TEST_F(WorkflowCommands, SimulateShowsTheEffectOfANewManifest) {
  const std::string history = folder_ / "h.jsonl";
  expect_result(run_workflow_command({"test", scenarios_, "--name", "do not meet", "--history", history}), 0,
                "all as expected");
  fs::copy(folder_ / "order", folder_ / "next");
  replace_in_file("next/order.lua", "local LIMIT_CENTS = 50000", "local LIMIT_CENTS = 5");
  const std::string new_manifest = folder_ / "next/order.json";
  const std::string event = R"(order/Placed={"id": 3, "item": "lamp", "count": 3, "cents": 6, "card": "x"})";
  const Json output =
      run_json({"simulate", new_manifest, "--history", history, "--send", event, "--receipt",
                R"(stock/reserve={"reserved": true})", "--receipt", R"(approval={"approved": false, "by": 2})"},
               0);
  EXPECT_EQ(output["obstacles"].size(), 2U);
  EXPECT_EQ(output["effects"][1]["effect"], "sys/approval@1") << output.dump(2);
  EXPECT_EQ(output["pending"].size(), 3U) << "the pending intents of the copied deployment";
  EXPECT_EQ(output["changed"][0]["after"]["why"], "approval: refused") << output.dump(2);
  const Json replay_output = run_json(
      {"simulate", new_manifest, "--scenario", scenarios_, "--name", "do not meet", "--send", event, "--pending"}, 0);
  EXPECT_EQ(replay_output["pending"].size(), 4U) << replay_output.dump(2);
  EXPECT_EQ(run_json({"simulate", new_manifest, "--send", event}, 0)["obstacles"].size(), 0U);
  expect_result(run_workflow_command({"simulate", new_manifest, "--send", event}), 0,
                "what other inputs would bring is not known");
  expect_result(run_workflow_command({"simulate", new_manifest, "--send", event}), 0, "generated receipts: ");
  expect_result(run_workflow_command({"simulate", new_manifest, "--send", R"(order/Placed={"id": 0})"}), 1,
                "refused: ");
  expect_result(run_workflow_command({"simulate", new_manifest, "--send", "order/Plced={}"}), 66, "did you mean");
  expect_result(run_workflow_command({"simulate", new_manifest, "--send", "order/Placed"}), 65, "NAME=JSON");
  expect_result(run_workflow_command({"simulate", new_manifest, "--scenario", scenarios_}), 65, "--name says which");
  expect_result(run_workflow_command({"simulate", new_manifest, "--history", new_manifest}), 65, "line 1");
}

TEST_F(WorkflowCommands, DiffReportsChangesAndBlockingInstances) {
  expect_result(run_workflow_command({"diff", manifest_, manifest_}), 0, "no differences");
  const std::string history = folder_ / "h.jsonl";
  expect_result(run_workflow_command({"test", scenarios_, "--name", "do not meet", "--history", history}), 0,
                "all as expected");
  fs::copy(folder_ / "order", folder_ / "next");
  replace_in_file("next/order.lua", "local ATTEMPTS = 3", "local ATTEMPTS = 4");
  replace_in_file("next/order.json", "\"maximum\": 1000", "\"maximum\": 10");
  const std::string new_manifest = folder_ / "next/order.json";
  const ProcessResult result = run_workflow_command({"diff", manifest_, new_manifest, "--history", history});
  for (const char* expected : {"schema order/Placed@1: changed", "-       \"maximum\": 1000,",
                               "+       \"maximum\": 10,", "code order.lua: changed", "- local ATTEMPTS = 3",
                               "+ local ATTEMPTS = 4", "an apply now is refused: ", "keeps its code"})
    expect_result(result, 1, expected);
  const Json output = run_json({"diff", manifest_, new_manifest, "--history", history}, 1);
  EXPECT_EQ(output["differences"].size(), 2U);
  EXPECT_TRUE(output["apply"]["refused"].get<bool>());
  EXPECT_EQ(output["apply"]["keeps"].size(), 2U);
  EXPECT_FALSE(run_json({"diff", manifest_, new_manifest}, 1).contains("apply"));
}

}  // namespace
}  // namespace mycojobs::test
