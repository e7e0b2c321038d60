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
  ProcessResult mycojobs(std::vector<std::string> words) {
    words.insert(words.begin(), {program_path(), "workflow"});
    return run(folder_, words);
  }
  Json json(std::vector<std::string> words, int code) {
    words.emplace_back("--json");
    const ProcessResult result = mycojobs(words);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    auto parsed = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
    return parsed.is_discarded() ? Json::object() : parsed;
  }
  std::string change(const std::string& file, const std::string& what, const std::string& with) {
    std::string text = read_file(folder_ / file);
    const auto at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    if (at != std::string::npos) text.replace(at, what.size(), with);
    return folder_.write(file, text);
  }

  TempDir folder_;
  const std::string manifest_ = folder_ / "order/order.json", scenarios_ = folder_ / "order/order.test.json";
};

TEST_F(WorkflowCommands, CheckReportsContentsOrAllProblems) {
  expect_says(mycojobs({"check", manifest_}), 0, "order/order@1: 1 workflow, 4 effects, 2 subscriptions, manifest ");
  const Json fine = json({"check", manifest_}, 0);
  EXPECT_TRUE(fine["ok"].get<bool>());
  EXPECT_EQ(fine["workflows"][0]["name"], "order/order@1");
  EXPECT_EQ(fine["hash"].get<std::string>().size(), 64U);
}

TEST_F(WorkflowCommands, ProblemsAreReportedWithFileLineAndPath) {
  change("order/order.json", R"("order": {"$ref": "order/Placed@1"})", R"("order": {"$ref": "order/Gone@1"})");
  change("order/order.json", R"("title": "Cancelled")", R"("title": "Placed")");
  change("order/order.json", R"("stock/release@1", "payment)", R"("stock/relase@1", "payment)");
  change("order/order.json", R"("module": "charge.py")", R"("module": "gone.py")");
  change("order/order.lua", "local function fail(state)", "local function fail(state");
  const ProcessResult result = mycojobs({"check", manifest_});
  for (const char* output :
       {"order.json:35:9: ", "schemas.order/State@1.properties.order", "order/Gone@1", "schemas.order/Event@1.oneOf[1]",
        "effects_emitted[1]: the effect \"stock/relase@1\" is not declared; did you mean",
        "effects[2].module: ", "gone.py: no such file", "order.lua:31:1: "})
    expect_says(result, 65, output);
  const Json shown = json({"check", manifest_}, 65);
  EXPECT_FALSE(shown["ok"].get<bool>());
  EXPECT_EQ(shown["problems"].size(), 5U) << shown.dump(2);
  for (const auto& each : shown["problems"]) EXPECT_GT(each["line"].get<int>(), 0) << each.dump();
}

TEST_F(WorkflowCommands, HistoryIsReplayedWithoutRedis) {
  const std::string history = folder_ / "h.jsonl";
  ASSERT_EQ(mycojobs({"test", scenarios_, "--name", "small order", "--history", history}).code, 0);
  expect_says(mycojobs({"verify-replay", "--history", history}), 0, "the same outputs");
  const Json same = json({"verify-replay", "--history", history}, 0);
  EXPECT_TRUE(same["same"].get<bool>());
  EXPECT_GT(same["steps"].get<int>(), 1);
  EXPECT_GT(same["entries"].get<int>(), 4);
  // Changes an output in the recorded history, so the code no longer matches it.
  std::string text = read_file(history);
  const auto at = text.find("pc = 'reserving'");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 16, "pc = 'rEserving'");
  folder_.write("h.jsonl", text);
  expect_says(mycojobs({"verify-replay", "--history", history}), 65, "h.jsonl: ");
  expect_says(mycojobs({"verify-replay"}), 65, "give a WORKFLOW, or --history FILE");
  expect_says(mycojobs({"verify-replay", "--history", folder_ / "none"}), 66, "none");
}

TEST_F(WorkflowCommands, CheckRunsTheTopLevelAndFindsTheEntrypoint) {
  change("order/order.json", R"("entrypoint": "step")", R"("entrypoint": "stp")");
  expect_says(mycojobs({"check", manifest_}), 65,
              "impl.entrypoint: order.lua: it defines no function stp(state, event, ctx)");
  change("order/order.json", R"("entrypoint": "stp")", R"("entrypoint": "step")");
  change("order/order.lua", "local on = {}", "local on = {} error('at the top')");
  expect_says(mycojobs({"check", manifest_}), 65, "order.lua:46:1: at the top");
  change("order/order.lua", "error('at the top')", "while true do end");
  expect_says(mycojobs({"check", manifest_}), 65,
              "order.lua:46:1: its top level takes more than 50000000 instructions");
  change("order/order.lua", "while true do end", "");
  change("order/order.lua", "function step(state, event)", "function step(state, event) while true do end");
  expect_says(mycojobs({"check", manifest_}), 0, "order/order@1");
}

TEST_F(WorkflowCommands, CheckReadsOnlyFilesBelowTheManifest) {
  change("order/order.json", R"("module": "charge.py")", R"("module": "../../etc/passwd")");
  expect_says(mycojobs({"check", manifest_}), 65, "is no path below the manifest");
  expect_says(mycojobs({"check", folder_ / "gone.json"}), 66, "no such file");
  expect_says(mycojobs({"check", folder_.write("bad.json", "{\"name\": \n  x}")}), 65, "bad.json:2:3");
  expect_says(mycojobs({"check", folder_.write("twice.json", "{\"name\": 1, \"name\": 2}")}), 65, "twice.json");
}

TEST_F(WorkflowCommands, TestPlaysTheExamples) {
  const ProcessResult result = mycojobs({"test", scenarios_, folder_ / "choreography/shop.test.json"});
  expect_says(result, 0, "all as expected");
  EXPECT_NE(result.out.find("ok    a small order is reserved and paid"), std::string::npos) << result.out;
  const Json shown = json({"test", scenarios_, folder_ / "choreography/shop.test.json"}, 0);
  EXPECT_TRUE(shown["ok"].get<bool>());
  EXPECT_EQ(shown["played"], 12);
  EXPECT_EQ(shown["files"][1]["scenarios"].size(), 3U);
  EXPECT_GT(shown["files"][0]["scenarios"][0]["steps"].get<int>(), 3);
  EXPECT_EQ(json({"test", scenarios_, "--name", "do not meet"}, 0)["played"], 1);
  expect_says(mycojobs({"test", scenarios_, "--name", "odd"}), 66, "no scenario has \"odd\" in its name");
}

TEST_F(WorkflowCommands, MismatchHasItsPlaceAndDifference) {
  change("order/order.test.json", R"("pc": "paid", "attempt": 1)", R"("pc": "paid", "attempt": 2)");
  const ProcessResult result = mycojobs({"test", scenarios_});
  expect_says(result, 1, "FAIL  a small order is reserved and paid");
  for (const char* output : {"order.test.json:28:49: scenarios[0].steps[2].expect.state.order 7.attempt: ",
                             "-   \"attempt\": 2,", "+   \"attempt\": 1,", "9 scenarios", "1 failed"})
    expect_says(result, 1, output);
  const Json shown = json({"test", scenarios_}, 1);
  EXPECT_EQ(shown["failed"], 1);
  const Json problem = shown["files"][0]["scenarios"][0]["problems"][0];
  EXPECT_EQ(problem["line"], 28);
  EXPECT_NE(problem["expected"], problem["got"]);
}

TEST_F(WorkflowCommands, InvalidScenarioOrManifestIsNotPlayed) {
  change("order/order.test.json", "\"wait\": \"15m\"", "\"wiat\": \"15m\"");
  expect_says(mycojobs({"test", scenarios_}), 1,
              "scenarios[0].steps[3].wiat: is an unknown field; did you mean \"wait\"?");
  const Json shown = json({"test", scenarios_}, 1);
  EXPECT_EQ(shown["played"], 0);
  EXPECT_EQ(shown["files"][0]["problems"].size(), 1U);
  change("order/order.test.json", "\"wiat\"", "\"wait\"");
  change("order/order.lua", "function step", "function stp");
  expect_says(mycojobs({"test", scenarios_}), 1, "it defines no function step");
  expect_says(mycojobs({"test"}), 64, "FILE");
}

TEST_F(WorkflowCommands, NewManifestIsPlayedOnTheOldScenarios) {
  fs::copy(folder_ / "order", folder_ / "next");
  change("next/order.lua", "local ATTEMPTS = 3", "local ATTEMPTS = 2");
  const ProcessResult result = mycojobs({"test", scenarios_, "--manifest", folder_ / "next/order.json"});
  expect_says(result, 1, "FAIL  a charge that fails is tried three times");
  expect_says(result, 1, "1 failed");
}

TEST_F(WorkflowCommands, SimulateShowsTheEffectOfANewManifest) {
  const std::string history = folder_ / "h.jsonl";
  expect_says(mycojobs({"test", scenarios_, "--name", "do not meet", "--history", history}), 0, "all as expected");
  fs::copy(folder_ / "order", folder_ / "next");
  change("next/order.lua", "local LIMIT_CENTS = 50000", "local LIMIT_CENTS = 5");
  const std::string next = folder_ / "next/order.json";
  const std::string placed = R"(order/Placed={"id": 3, "item": "lamp", "count": 3, "cents": 6, "card": "x"})";
  const Json shown =
      json({"simulate", next, "--history", history, "--send", placed, "--receipt",
            R"(stock/reserve={"reserved": true})", "--receipt", R"(approval={"approved": false, "by": 2})"},
           0);
  EXPECT_EQ(shown["obstacles"].size(), 2U);
  EXPECT_EQ(shown["effects"][1]["effect"], "sys/approval@1") << shown.dump(2);
  EXPECT_EQ(shown["pending"].size(), 3U) << "those of the copied world";
  EXPECT_EQ(shown["changed"][0]["after"]["why"], "approval: refused") << shown.dump(2);
  const Json same =
      json({"simulate", next, "--scenario", scenarios_, "--name", "do not meet", "--send", placed, "--pending"}, 0);
  EXPECT_EQ(same["pending"].size(), 4U) << same.dump(2);
  EXPECT_EQ(json({"simulate", next, "--send", placed}, 0)["obstacles"].size(), 0U);
  expect_says(mycojobs({"simulate", next, "--send", placed}), 0, "what other inputs would bring is not known");
  expect_says(mycojobs({"simulate", next, "--send", placed}), 0, "generated receipts: ");
  expect_says(mycojobs({"simulate", next, "--send", R"(order/Placed={"id": 0})"}), 1, "refused: ");
  expect_says(mycojobs({"simulate", next, "--send", "order/Plced={}"}), 66, "did you mean");
  expect_says(mycojobs({"simulate", next, "--send", "order/Placed"}), 65, "NAME=JSON");
  expect_says(mycojobs({"simulate", next, "--scenario", scenarios_}), 65, "--name says which");
  expect_says(mycojobs({"simulate", next, "--history", next}), 65, "line 1");
}

TEST_F(WorkflowCommands, DiffReportsChangesAndBlockingInstances) {
  expect_says(mycojobs({"diff", manifest_, manifest_}), 0, "no differences");
  const std::string history = folder_ / "h.jsonl";
  expect_says(mycojobs({"test", scenarios_, "--name", "do not meet", "--history", history}), 0, "all as expected");
  fs::copy(folder_ / "order", folder_ / "next");
  change("next/order.lua", "local ATTEMPTS = 3", "local ATTEMPTS = 4");
  change("next/order.json", "\"maximum\": 1000", "\"maximum\": 10");
  const std::string next = folder_ / "next/order.json";
  const ProcessResult result = mycojobs({"diff", manifest_, next, "--history", history});
  for (const char* output : {"schema order/Placed@1: changed", "-       \"maximum\": 1000,", "+       \"maximum\": 10,",
                             "code order.lua: changed", "- local ATTEMPTS = 3", "+ local ATTEMPTS = 4",
                             "an apply now is refused: ", "keeps its code"})
    expect_says(result, 1, output);
  const Json shown = json({"diff", manifest_, next, "--history", history}, 1);
  EXPECT_EQ(shown["differences"].size(), 2U);
  EXPECT_TRUE(shown["apply"]["refused"].get<bool>());
  EXPECT_EQ(shown["apply"]["keeps"].size(), 2U);
  EXPECT_FALSE(json({"diff", manifest_, next}, 1).contains("apply"));
}

}  // namespace
}  // namespace mycojobs::test
