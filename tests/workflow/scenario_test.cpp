// Scenarios: the format of their files, their execution, and the report of every mismatch.
#include "workflows/tools/scenario.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "workflow/stage.h"

namespace mycojobs::workflow_tests {
namespace {

std::string find_problems(const json& file) {
  const auto read = read_scenarios(file);
  EXPECT_EQ(read.file.has_value(), read.problems.empty());
  return join(read.problems);
}
json make_scenario_file(const json& steps) {
  return {{"manifest", "shop.json"}, {"scenarios", json::array({{{"name", "it"}, {"steps", steps}}})}};
}
std::string find_problem(const json& step) { return find_problems(make_scenario_file(json::array({step}))); }

TEST(ScenarioFile, ErrorsAreReportedTogetherWithTheirPath) {
  EXPECT_EQ(find_problems(1), "is the number 1, not a map");
  const std::string output = find_problems({{"manifst", "x"}, {"scenarios", json::array()}});
  EXPECT_NE(output.find("manifst: is an unknown field; did you mean \"manifest\"?"), std::string::npos) << output;
  EXPECT_NE(output.find("manifest is missing"), std::string::npos) << output;
  const json twice{{"name", "a"}, {"steps", json::array({{{"wait", "1s"}}})}};
  EXPECT_EQ(find_problems({{"manifest", "x"}, {"scenarios", {twice, twice}}}),
            "scenarios[1]: the scenario \"a\" is listed twice");
  EXPECT_EQ(find_problems({{"manifest", "x"}, {"scenarios", json::array()}}), "it has no scenario");
}

TEST(ScenarioFile, IncompleteOrAmbiguousStepIsRejected) {
  const std::string at = "scenarios[0].steps[0]";
  EXPECT_EQ(find_problem({{"note", "x"}}), at + ": has nothing to do: send, receipt, wait, apply or expect");
  EXPECT_EQ(find_problem({{"wait", "1s"}, {"apply", "x"}}), at + ": has one of send, receipt, wait, apply");
  EXPECT_EQ(find_problem({{"wait", "1s"}, {"ok", 1}}), at + ": ok belongs to a receipt");
  EXPECT_EQ(find_problem({{"receipt", "x"}}), at + ": a receipt has one of ok, error, timeout, cancelled");
  EXPECT_EQ(find_problem({{"receipt", "x"}, {"ok", 1}, {"error", "y"}}),
            at + ": a receipt has one of ok, error, timeout, cancelled");
  EXPECT_EQ(find_problem({{"send", {{"a", 1}, {"b", 2}}}}), at + ".send: has two names: \"a\" and \"b\"");
  EXPECT_EQ(find_problem({{"send", json::object()}}), at + ".send: has no name: {name: value}");
  EXPECT_NE(find_problem({{"wait", "15"}}).find(at + ".wait: "), std::string::npos);
  EXPECT_EQ(find_problem({{"expect", {{"status", {{"order 7", "odd"}}}}}}),
            at + ".expect: status: \"odd\" is not one of running, waiting, completed, failed");
  EXPECT_NE(find_problem({{"expect", {{"efects", 1}}}}).find("did you mean \"effects\"?"), std::string::npos);
}

TEST(ScenarioValues, WildcardsMatchAnyAndMoreValues) {
  const auto differ = [](const char* expected, const char* got) {
    return find_difference(json::parse(expected), json::parse(got)).value_or("same");
  };
  EXPECT_EQ(differ(R"({"a": 1})", R"({"a": 1.0})"), "same");
  EXPECT_EQ(differ(R"({"a": "$any"})", R"({"a": [1]})"), "same");
  EXPECT_EQ(differ(R"({"a": "$any"})", R"({})"), "a");
  EXPECT_EQ(differ(R"({"a": 1})", R"({"a": 1, "b": 2})"), "b");
  EXPECT_EQ(differ(R"({"a": 1, "$more": true})", R"({"a": 1, "b": 2})"), "same");
  EXPECT_EQ(differ(R"({"a": 1, "$more": false})", R"({"a": 1, "b": 2})"), "$more");
  EXPECT_EQ(differ(R"({"a": {"b": [1, {"c": 2}]}})", R"({"a": {"b": [1, {"c": 3}]}})"), "a.b.[1].c");
  EXPECT_EQ(differ(R"([1, 2])", R"([1])"), "[1]");
  EXPECT_EQ(differ("1", "\"1\""), "");
  EXPECT_EQ(fill_wildcards(json::parse(R"({"a": "$any", "$more": true, "l": [{"$more": true}]})"),
                           json::parse(R"({"a": 5, "b": 6, "l": [{"x": 1}]})")),
            json::parse(R"({"a": 5, "b": 6, "l": [{"x": 1}]})"));
}

// The shop of orders and a ledger (stage.h), with an additional timer and approval.
class ScenarioPlay : public ::testing::Test {
 protected:
  ScenarioPlay() {
    manifest_ = orders_manifest();
    auto& order = manifest_["workflows"][0];
    order["effects_emitted"] = {"payment/charge@1", "sys/timer@1", "sys/approval@1"};
    functions_ = orders_engine();
  }
  ScenarioResult run_steps(const json& steps, const json& answers = json::object()) {
    auto read = read_manifest(manifest_, {{"shop.lua", "return {}"}});
    EXPECT_TRUE(read.problems.empty()) << join(read.problems);
    ManifestCatalog catalog;
    catalog.add(read.manifest);
    ScenarioManifests manifests{catalog, read.manifest->hash, {}};
    if (later_) {
      auto other = read_manifest(*later_, {{"shop.lua", "return {}"}});
      catalog.add(other.manifest);
      manifests.files["later.json"] = other.manifest->hash;
    }
    json file = make_scenario_file(steps);
    file["answers"] = answers;
    const auto scenarios = read_scenarios(file);
    EXPECT_TRUE(scenarios.file) << join(scenarios.problems);
    return run_scenario(*scenarios.file, scenarios.file->scenarios[0], manifests, make_engine(functions_));
  }
  // Returns the first mismatch as "path: message".
  std::string wrong(const json& steps, const json& answers = json::object()) {
    const auto made = run_steps(steps, answers);
    if (made.mismatches.empty()) return "";
    return made.mismatches[0].path + ": " + made.mismatches[0].message;
  }
  static json created(const std::string& id = "a", int cents = 500) {
    return {{"com.acme/OrderCreated", {{"order_id", id}, {"cents", cents}}}};
  }

  json manifest_;
  std::optional<json> later_;
  std::map<std::string, StepFunction> functions_;
};

TEST_F(ScenarioPlay, EventsAreCompared) {
  const json receipt{{"receipt", "payment/charge"}, {"ok", {{"ok", true}}}};
  json paid = receipt;
  paid["expect"] = {
      {"events", json::array({{{"com.acme/Paid", {{"order_id", "a"}, {"cents", 500}}}, {"from", "order a"}}})},
      {"state", {{"ledger", 500}, {"order a", {{"pc", "paid"}, {"cents", 500}}}}},
      {"status", {{"order a", "waiting"}}},
      {"pending", json::array()}};
  const json begin{{"send", created()},
                   {"expect", {{"effects", json::array({{{"payment/charge", {{"cents", 500}}}, {"ref", "pay"}}})}}}};
  EXPECT_EQ(wrong({begin, paid}), "");
  const auto made = run_steps({begin, paid});
  EXPECT_EQ(made.steps, 3U);
  EXPECT_EQ(made.deployment.height, made.facts.back().height);
  // Each of these expectations can fail.
  const auto broken = [&](const char* pointer, const json& value) {
    json step = paid;
    step[json::json_pointer(pointer)] = value;
    return wrong({begin, step});
  };
  const std::string at = "scenarios[0].steps[1].expect";
  EXPECT_EQ(broken("/expect/state/ledger", 501), at + ".state.ledger: the state of ledger differs");
  EXPECT_EQ(broken("/expect/state/order a/pc", "new"), at + ".state.order a.pc: the state of order a differs");
  EXPECT_EQ(broken("/expect/status/order a", "failed"), at + ".status.order a: order a is waiting");
  EXPECT_EQ(broken("/expect/events", json::array()), at + ".events: the events differ");
  EXPECT_EQ(broken("/expect/events/0/from", "ledger"), at + ".events[0]: the events differ");
  EXPECT_EQ(broken("/expect/pending", {"payment/charge"}), at + ".pending: other effects wait for a receipt");
  EXPECT_EQ(broken("/expect/effects", json::array({{{"payment/charge", "$any"}}})),
            at + ".effects: the effects differ");
  EXPECT_EQ(broken("/expect/refused", "x"), at + ".refused: it was not refused");
  EXPECT_EQ(broken("/expect/failed", {{"order a", "x"}}), at + ".failed.order a: order a has not failed");
  EXPECT_EQ(broken("/expect/state/ordr a", 1),
            at + ".state.ordr a: there is no workflow \"ordr\"; did you mean \"order\"?");
  EXPECT_EQ(broken("/expect/state/order", 1), at + ".state.order: com.acme/order@1 is keyed: \"order\" has no key");
}

TEST_F(ScenarioPlay, UnexpectedEffectIsAMismatch) {
  EXPECT_EQ(wrong({{{"send", created()}}}), "");
  EXPECT_EQ(wrong({{{"send", created()}, {"expect", json::object()}}}),
            "scenarios[0].steps[0].expect.effects: the effects differ");
}

TEST_F(ScenarioPlay, ReceiptNeedsExactlyOneEffect) {
  const json first{{"send", created("a")}}, second{{"send", created("b")}};
  json receipt{{"receipt", "payment/charge"}, {"ok", {{"ok", true}}}};
  EXPECT_EQ(wrong(json::array({receipt})),
            "scenarios[0].steps[0].receipt: no effect payment/charge@1 waits for a receipt");
  EXPECT_EQ(wrong({first, second, receipt}),
            "scenarios[0].steps[2].receipt: 2 effects payment/charge@1 wait for a receipt: select one with of or ref");
  receipt["of"] = "order b";
  receipt["expect"] = {{"events", json::array({{{"com.acme/Paid", {{"order_id", "b"}, {"cents", 500}}}}})},
                       {"pending", {"payment/charge"}}};
  EXPECT_EQ(wrong({first, second, receipt}), "");
  receipt["ref"] = "other";
  EXPECT_EQ(wrong({first, second, receipt}),
            "scenarios[0].steps[2].receipt: no effect payment/charge@1 waits for a receipt");
}

TEST_F(ScenarioPlay, InvalidPayloadIsReportedUnlessExpected) {
  const json first{{"send", created("a")}};
  json receipt{{"receipt", "payment/charge"}, {"ok", {{"ok", 1}}}};
  EXPECT_NE(wrong({first, receipt}).find("the payload does not fit its schema"), std::string::npos);
  receipt["misfit"] = true;
  receipt["expect"] = {{"state", {{"order a", {{"pc", "rejected"}, {"cents", 0}}}}}};
  EXPECT_EQ(wrong({first, receipt}), "");
  receipt["ok"] = {{"ok", true}};
  EXPECT_NE(wrong({first, receipt}).find("is meant not to"), std::string::npos);
}

TEST_F(ScenarioPlay, FailedInstanceIsAMismatchUnlessExpected) {
  functions_["order"] = [](const json&, const json&, const json&) -> json {
    return {{"error", {{"kind", "script"}, {"message", "boom"}, {"line", 3}}}};
  };
  json step{{"send", created("a")}};
  EXPECT_EQ(wrong(json::array({step})), "scenarios[0].steps[0]: order a has failed: boom (line 3)");
  step["expect"] = {{"failed", {{"order a", "boom"}}}, {"status", {{"order a", "failed"}}}};
  EXPECT_EQ(wrong(json::array({step})), "");
  step["expect"]["failed"]["order a"] = "bang";
  EXPECT_EQ(wrong(json::array({step})),
            "scenarios[0].steps[0].expect.failed.order a: order a has failed in another way");
}

TEST_F(ScenarioPlay, RefusalsAreMatchedByText) {
  json step{{"send", {{"com.acme/OrderCreated", {{"order_id", ""}, {"cents", 1}}}}}};
  EXPECT_NE(wrong(json::array({step})).find("it was refused"), std::string::npos);
  step["expect"] = {{"refused", "order_id"}};
  EXPECT_EQ(wrong(json::array({step})), "");
  EXPECT_NE(wrong({{{"send", {{"com.acme/Odd", 1}}}}}).find("there is no event \"com.acme/Odd\""), std::string::npos);
}

TEST_F(ScenarioPlay, TimeAdvancesOnlyOnRequest) {
  functions_["order"] = [](const json& state, const json& event, const json& ctx) -> json {
    const auto timer = [](int ms) { return json{{"kind", "sys/timer@1"}, {"params", {{"after_ms", ms}}}}; };
    json next{{"pc", "t"}, {"cents", 0}, {"seen", state.is_null() ? json::array() : state.at("seen")}};
    next["seen"].push_back(ctx.at("now_ms"));
    if (event.at("$tag") == "Created") return {{"state", next}, {"effects", {timer(2000), timer(1000), timer(0)}}};
    return {{"state", next}};
  };
  const std::uint64_t start = 1767225600000;
  const auto seen = [&](std::vector<std::uint64_t> after) {
    json list = json::array();
    for (const auto ms : after) list.push_back(start + ms);
    return json{{"state", {{"order a", {{"pc", "t"}, {"cents", 0}, {"seen", list}}}}}};
  };
  json begin{{"send", created("a")}};
  begin["expect"] = seen({0, 0});
  begin["expect"]["effects"] = json::array({{{"sys/timer", "$any"}}, {{"sys/timer", "$any"}}, {{"sys/timer", "$any"}}});
  EXPECT_EQ(wrong({begin,
                   {{"wait", "999ms"}, {"expect", seen({0, 0})}},
                   {{"wait", "1ms"}, {"expect", seen({0, 0, 1000})}},
                   {{"wait", "timer"}, {"expect", seen({0, 0, 1000, 2000})}}}),
            "");
  EXPECT_EQ(wrong({begin, {{"wait", "1h"}, {"expect", seen({0, 0, 1000, 2000})}}}), "");
  EXPECT_EQ(wrong({{{"wait", "timer"}}}), "scenarios[0].steps[0].wait: no timer waits");
}

TEST_F(ScenarioPlay, ApprovalHasItsTimeout) {
  functions_["order"] = [](const json&, const json& event, const json&) -> json {
    if (event.at("$tag") == "Created")
      return {{"state", {{"pc", "asked"}, {"cents", 0}}},
              {"effects", json::array({{{"kind", "sys/approval@1"},
                                        {"params", {{"title", "x"}, {"approvers", {1}}, {"timeout_ms", 5000}}}}})}};
    const json& value = event.at("$value");
    return {{"state", {{"pc", value.at("status")}, {"cents", 0}, {"seen", value.at("payload")}}}};
  };
  const json begin{{"send", created("a")}};
  EXPECT_EQ(
      wrong({begin, {{"wait", "5s"}, {"expect", {{"state", {{"order a", {{"pc", "timeout"}, {"$more", true}}}}}}}}}),
      "");
  EXPECT_EQ(wrong({begin,
                   {{"receipt", "sys/approval"},
                    {"ok", {{"approved", true}, {"by", 1}}},
                    {"expect", {{"state", {{"order a", {{"pc", "ok"}, {"$more", true}}}}}}}},
                   {{"wait", "5s"}, {"expect", {{"state", {{"order a", {{"pc", "ok"}, {"$more", true}}}}}}}}}),
            "");
}

TEST_F(ScenarioPlay, AnswersAreAutomatic) {
  const json answers{{"payment/charge", {{"ok", {{"ok", true}}}}}};
  EXPECT_EQ(wrong({{{"send", created()},
                    {"expect",
                     {{"state", {{"ledger", 500}}},
                      {"pending", json::array()},
                      {"effects", json::array({{{"payment/charge", "$any"}}})},
                      {"events", json::array({{{"com.acme/Paid", "$any"}}})}}}}},
                  answers),
            "");
  EXPECT_NE(wrong({{{"send", created()}}}, {{"payment/charge", {{"ok", 1}}}}).find("does not fit"), std::string::npos);
  EXPECT_NE(wrong({{{"send", created()}}}, {{"payment/chrge", {{"ok", 1}}}}).find("did you mean"), std::string::npos);
}

TEST_F(ScenarioPlay, ApplyIsRejectedWhileInstancesAreBusy) {
  later_ = manifest_;
  (*later_)["description"] = "the next one";
  const json apply{{"apply", "later.json"}};
  json refused = apply;
  refused["expect"] = {{"refused", "1 intent in flight"}};
  EXPECT_EQ(wrong(json::array({apply})), "");
  EXPECT_EQ(wrong({{{"send", created()}}, refused}), "");
  EXPECT_NE(wrong({{{"send", created()}}, apply}).find("it was refused"), std::string::npos);
}

TEST_F(ScenarioPlay, NonDeterministicCodeIsFound) {
  functions_["ledger"] = [count = std::make_shared<int>(0)](const json&, const json&, const json&) -> json {
    return {{"state", ++*count}};
  };
  const json receipt{{"receipt", "payment/charge"}, {"ok", {{"ok", true}}}};
  const std::string output = wrong({{{"send", created()}}, receipt});
  EXPECT_NE(output.find("ledger is not deterministic: the step at height"), std::string::npos) << output;
}

TEST_F(ScenarioPlay, EndlessScenarioIsStopped) {
  functions_["order"] = [](const json&, const json&, const json&) -> json {
    return {{"state", {{"pc", "t"}, {"cents", 0}}},
            {"effects", json::array({{{"kind", "sys/timer@1"}, {"params", {{"after_ms", 0}}}}})}};
  };
  EXPECT_EQ(wrong({{{"send", created()}}}), "scenarios[0].steps[0]: no rest after 10000 steps of code");
}

TEST_F(ScenarioPlay, SameScenarioHasTheSameHistory) {
  const json steps{{{"send", created()}}, {{"receipt", "payment/charge"}, {"error", "declined"}}};
  EXPECT_EQ(run_steps(steps).facts, run_steps(steps).facts);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
