// The checks of begin(), and the request that it creates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/clock.h"
#include "executors/channel.h"
#include "executors/executor_table.h"
#include "executors/python/python_driver.h"
#include "executors/script_conversation.h"
#include "support/process.h"

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

std::string get_rejection(const JobFacts& facts) {
  const auto conversation = begin_script(facts, {"python", "python"}, nullptr);
  return conversation ? "accepted" : conversation.error().message;
}

TextMap build_variables(const JobFacts& facts, const TextMap& additional = {}) {
  return nlohmann::json::parse(encode_environment(facts, parse_flow_data(facts.job), additional)).get<TextMap>();
}

TEST(Request, NonUtf8ScriptIsRejectedByItsOffset) {
  EXPECT_EQ(get_rejection(test::make_facts("print('0123456789\xff')")), "script: byte 0xff at offset 17 is not UTF-8");
}

TEST(Request, EnvironmentIsCheckedByName) {
  JobFacts facts = test::make_facts("pass");
  const std::pair<TextMap, const char*> rows[] = {{{{"A=B", "x"}}, "env_vars"},
                                                  {{{"", "x"}}, "env_vars"},
                                                  {{{std::string("A\0B", 3), "x"}}, "env_vars"},
                                                  {{{"A", std::string("x\0y", 3)}}, "env_vars"},
                                                  {{{"NAME", "ab\xfe"}}, "byte 0xfe at offset 2 is not UTF-8"}};
  for (const auto& [env, problem] : rows) {
    facts.job.env_vars = env;
    EXPECT_THAT(get_rejection(facts), HasSubstr(problem));
  }
  facts.job.env_vars = {{"BIG", std::string(5 << 20, 'x')}};
  EXPECT_THAT(get_rejection(facts), HasSubstr("env_vars: 5"));
  EXPECT_THAT(get_rejection(facts), HasSubstr("over the limit of 4194304 bytes"));
}

TEST(Request, InvalidEnvironmentNameIsRejected) {
  JobFacts facts = test::make_facts("pass");
  facts.job.name = std::string("a\0b", 3);
  EXPECT_THAT(get_rejection(facts), HasSubstr("name: contains NUL"));
  facts.job.name = "\x80";
  EXPECT_EQ(get_rejection(facts), "name: byte 0x80 at offset 0 is not UTF-8");
}

TEST(Request, EmptyAndHugeScriptsAreRejected) {
  EXPECT_THAT(get_rejection(test::make_facts("")), HasSubstr("script"));
  EXPECT_EQ(get_rejection(test::make_facts(std::string(kMaxScriptBytes + 1, '#'))),
            "script: 16777217 bytes are over the limit of 16777216 bytes");
}

TEST(Request, ContainsFactsEnvironmentAndScriptInOrder) {
  JobFacts facts = test::make_facts("x = 1");
  facts.job.env_vars = {{"A", "é"}, {"MYCOJOBS_ATTEMPT", "forged"}};
  facts.job.claim_id = "a secret token";
  facts.job.attempt = 2;
  facts.inputs["build"] = {2000, {{"size", "9"}}, {"size"}};
  facts.secrets = {{"db", "hunter2"}};
  const auto conversation = begin_script(facts, {"python", "python"}, nullptr);
  ASSERT_TRUE(conversation);
  std::vector<Frame> frames;
  FrameReader reader({{FrameKind::facts, 1000},
                      {FrameKind::environment, 1000},
                      {FrameKind::inputs, 1000},
                      {FrameKind::file, 1000},
                      {FrameKind::script, 1000}});
  const std::string request = (*conversation)->consume_output();
  EXPECT_EQ((*conversation)->consume_output(), "");
  reader.feed(request, [&frames](Frame&& frame) { frames.push_back(std::move(frame)); });
  ASSERT_EQ(frames.size(), 5U);
  EXPECT_EQ(nlohmann::json::parse(frames[0].payload)["attempt"], 2);
  const auto environment = nlohmann::json::parse(frames[1].payload);
  EXPECT_EQ(environment["A"], "é");
  EXPECT_EQ(environment["MYCOJOBS_ATTEMPT"], "2");
  EXPECT_EQ(frames[2].payload, R"({"build":{"size":9}})");
  EXPECT_EQ(frames[3].payload, std::string("secrets/db\000400\0hunter2", 22));
  EXPECT_EQ(frames[4].payload, "x = 1");
  EXPECT_EQ(request.find("a secret token"), std::string::npos);
}

TEST(Request, ExecutorEnvironmentOverridesOnlyTheDefault) {
  JobFacts facts;
  facts.job.id = 7;
  facts.job.env_vars = {{"A", "job"}};
  const TextMap variables =
      build_variables(facts, {{"A", "executor"}, {"PATH", "/opt/bin:/usr/bin"}, {"MYCOJOBS_JOB_ID", "forged"}});
  EXPECT_EQ(variables.at("A"), "job");
  EXPECT_EQ(variables.at("PATH"), "/opt/bin:/usr/bin");
  EXPECT_EQ(variables.at("HOME"), "/job");
  EXPECT_EQ(variables.at("MYCOJOBS_JOB_ID"), "7");
}

std::vector<std::string> split_payloads(const std::string& request) {
  std::vector<std::string> payloads;
  FrameReader reader({{FrameKind::facts, kMaxFactsBytes},
                      {FrameKind::environment, kMaxEnvironmentBytes},
                      {FrameKind::inputs, kMaxInputsBytes},
                      {FrameKind::file, kMaxFileFrameBytes},
                      {FrameKind::script, kMaxScriptBytes}});
  reader.feed(request, [&payloads](Frame&& frame) { payloads.push_back(std::move(frame.payload)); });
  return payloads;
}

// The writer does not build a JSON tree, but its output must equal that of a JSON tree.
TEST(Request, HostileTextsAreWrittenLikeTheJsonLibrary) {
  const std::string texts[] = {"",
                               "\"",
                               "\\",
                               "\\\"",
                               "a\nb\tc",
                               "\x01\x1f\x7f",
                               "é€😀",
                               "</script>\xE2\x80\xA8",
                               "{\"a\":1}",
                               "\\u0041",
                               std::string(300, '"')};
  std::mt19937 random(21);
  const auto text = [&] { return texts[random() % std::size(texts)]; };
  for (int round = 0; round < 500; ++round) {
    JobFacts facts = test::make_facts("pass");
    facts.job.name = text();
    facts.job.env_vars = {{"A" + text(), text()}, {text() + "B", text()}, {"PATH", text()}, {"~" + text(), text()}};
    facts.job.unknown = {
        {"flow_data", nlohmann::json{{"inputs", {{text(), text()}}}, {"each", {{"value", text()}}}}.dump()}};
    facts.granted_policy.network = round % 2 == 0 ? Network::allow_list : Network::loopback;
    facts.granted_policy.net_allow = {text(), text()}, facts.granted_policy.fs_read = {text()},
    facts.granted_policy.secrets = {text(), text()};
    facts.granted_policy.warm_runs = round % 3;
    facts.inputs = {{"build" + text(), {2000, {{text(), text()}, {"n", "[1]"}}, {"n"}}}, {"x", {2001, {}, {}}}};
    ScriptExtras extras{.executor = "command", .profile = "command"};
    extras.command = {text(), text()}, extras.script_file = text(), extras.attached_path = text();
    extras.environment = {{"E", text()}, {"MYCOJOBS_JOB_ID", "forged"}};
    extras.replaces_environment = round % 5 == 0;
    const auto payloads = split_payloads(*encode_script_request(facts, extras));
    ASSERT_GE(payloads.size(), 4U);
    for (const std::size_t i : {0, 1, 2}) {
      ASSERT_EQ(payloads[i], nlohmann::json::parse(payloads[i]).dump()) << i;
    }
    const auto encoded_facts = nlohmann::json::parse(payloads[0]);
    EXPECT_EQ(encoded_facts.at("name"), facts.job.name);
    EXPECT_EQ(encoded_facts.at("command"), nlohmann::json(extras.command));
    EXPECT_EQ(encoded_facts.at("granted").at("secrets"), nlohmann::json(facts.granted_policy.secrets));
    EXPECT_EQ(nlohmann::json::parse(payloads[1]).at("E"), extras.environment.at("E"));
  }
}

// Exact bytes, because hosts of an older release read them, too.
TEST(Request, FactsAndEnvironmentHaveTheseBytes) {
  JobFacts facts = test::make_facts("pass");
  facts.job.id = 7, facts.job.caller_id = 12, facts.job.context_id = 3, facts.job.name = "n\"";
  facts.job.epoch = 9, facts.job.runner_id = 20, facts.deadline_unix_ms = 1795000063000;
  facts.granted_policy = {}, facts.granted_policy.memory_bytes = 1024, facts.granted_policy.warm_runs = 5;
  const auto payloads = split_payloads(*encode_script_request(facts, {.executor = "python", .profile = "python"}));
  EXPECT_EQ(
      payloads[0],
      R"({"attempt":0,"caller_id":12,"context_id":3,"deadline_unix_ms":1795000063000,"deliveries":0,"epoch":9,)"
      R"("executor":"python","granted":{"exec":false,"fs.read":[],"fs.write":[],"memory":1024,"net":"none","secrets":[],"volumes":[]},)"
      R"("id":7,"max_artifact_bytes":67108864,"max_result_bytes":1048576,"name":"n\"","runner_id":20,"warm":true})");
  EXPECT_EQ(
      payloads[1],
      R"({"HOME":"/job","LANG":"C.UTF-8","LOGNAME":"job","MYCOJOBS_ARTIFACTS":"/job/artifacts","MYCOJOBS_ATTEMPT":"0",)"
      R"("MYCOJOBS_CALLER_ID":"12","MYCOJOBS_CONTEXT_ID":"3","MYCOJOBS_DEADLINE_UNIX_MS":"1795000063000",)"
      R"("MYCOJOBS_DELIVERIES":"0","MYCOJOBS_EPOCH":"9","MYCOJOBS_INPUTS_DIR":"/job/inputs","MYCOJOBS_JOB_ID":"7",)"
      R"("MYCOJOBS_JOB_NAME":"n\"","MYCOJOBS_RUNNER_ID":"20","MYCOJOBS_SECRETS":"/job/secrets","PATH":"/usr/bin:/bin",)"
      R"("USER":"job"})");
  EXPECT_EQ(payloads[2], "{}");
}

// A program reads its inputs by name in one file and by id in another.
TEST(Request, ProgramReceivesItsInputsById) {
  JobFacts facts = test::make_facts("x");
  facts.inputs["build"] = {2000, {{"size", "9"}}, {"size"}};
  facts.inputs["2001"] = {2001, {{"size", "9"}}, {}};
  ScriptExtras extras{"command", "command"};
  const std::string without = *encode_script_request(facts, extras);
  EXPECT_EQ(without.find("inputs_by_id"), std::string::npos);
  extras.command = {"/bin/true"};
  const std::string with = *encode_script_request(facts, extras);
  EXPECT_NE(with.find(R"({"2001":{"size":"9"},"build":{"size":9}})"), std::string::npos);
  EXPECT_NE(with.find(R"({"2001":{"size":"9"},"2000":{"size":9}})"), std::string::npos);
  EXPECT_NE(with.find(R"("input_names":{"2000":"build"})"), std::string::npos);
}

// The request is in memory once, however large the files are.
TEST(Request, LargeArtifactIsReadIntoMemoryOnce) {
  const test::TempDir folder;
  const std::string content(3 * kMaxFileFrameBytes, 'z');
  JobFacts facts = test::make_facts("pass");
  facts.files.emplace_back(
      "build", StoredArtifact{"app", "", content.size(), folder.write("app", content), /*executable=*/true});
  const std::string request = *encode_script_request(facts, {"python", "python"});
  EXPECT_LT(request.capacity(), request.size() + 64) << "the memory was reserved exactly";
  std::string received;
  const std::string header = std::string("inputs/build/app") + '\0' + "555" + '\0';
  for (const std::string& payload : split_payloads(request)) {
    if (payload.starts_with(header)) received += payload.substr(header.size());
  }
  EXPECT_TRUE(received == content);
  facts.files.front().second.bytes += 1;
  const auto incomplete = encode_script_request(facts, {"python", "python"});
  ASSERT_FALSE(incomplete);
  EXPECT_THAT(incomplete.error().message, HasSubstr("the artifact \"app\" of job \"build\" cannot be read"));
}

constexpr const char* kFlowData = R"({"inputs": {"region": "eu", "days": 7}, "signals": {"go": {"who": 12}},
                                      "each": {"index": 1, "count": 2, "value": {"a": 1}}, "joins": {"parts": [2102, 2101, 9]}})";

// The results of a node with `each` are one list in the order of its jobs. A job without a result has an empty entry.
TEST(Request, ResultsOfAnEachNodeAreOneListUnderItsName) {
  JobFacts facts = test::make_facts("x");
  facts.job.dependends = {9, 2000, 2101, 2102};
  facts.job.unknown = {{"flow_data", kFlowData}};
  facts.inputs["build"] = {2000, {{"size", "9"}}, {"size"}};
  facts.inputs["parts[1]"] = {2101, {{"n", "1"}}, {"n"}};
  facts.inputs["parts[0]"] = {2102, {{"n", "2"}}, {"n"}};
  ScriptExtras extras{"command", "command"};
  extras.command = {"/bin/true"};
  const std::string request = *encode_script_request(facts, extras);
  EXPECT_NE(request.find(R"({"build":{"size":9},"parts":[{"n":2},{"n":1},{}]})"), std::string::npos) << request;
  EXPECT_NE(request.find(R"({"2000":{"size":9},"parts":[{"n":2},{"n":1},{}]})"), std::string::npos) << request;
  EXPECT_NE(request.find(R"("input_names":{"2000":"build"})"), std::string::npos) << request;
  facts.job.dependends.clear();
  facts.inputs.clear();
  EXPECT_NE(encode_script_request(facts, extras)->find(R"({"parts":[]})"), std::string::npos)
      << "without elements, the list is empty";
}

TEST(Request, FlowDataIsInFactsAndEnvironment) {
  JobFacts facts = test::make_facts("x");
  facts.job.unknown = {{"flow_data", kFlowData}};
  facts.job.env_vars = {{"MYCOJOBS_INPUT_DAYS", "forged"}};
  const TextMap variables = build_variables(facts);
  EXPECT_EQ(variables.at("MYCOJOBS_INPUT_REGION"), "eu");
  EXPECT_EQ(variables.at("MYCOJOBS_INPUT_DAYS"), "7");
  EXPECT_EQ(variables.at("MYCOJOBS_EACH"), R"({"a":1})");
  EXPECT_EQ(variables.at("MYCOJOBS_EACH_INDEX"), "1");
  const std::string request = *encode_script_request(facts, {"python", "python"});
  EXPECT_NE(request.find(R"("signals":{"go":{"who":12}})"), std::string::npos) << request;
}

TEST(Request, JobOfAFlowHasTheNamesOfFlowAndNode) {
  JobFacts facts = test::make_facts("x");
  facts.job.flow_id = 9;
  facts.job.name = "parts[2]";
  facts.job.unknown = {{"flow_data", R"({"flow": "nightly"})"}};
  facts.job.env_vars = {{"MYCOJOBS_NODE", "forged"}};
  const TextMap variables = build_variables(facts);
  EXPECT_EQ(variables.at("MYCOJOBS_FLOW_ID"), "9");
  EXPECT_EQ(variables.at("MYCOJOBS_FLOW_NAME"), "nightly");
  EXPECT_EQ(variables.at("MYCOJOBS_NODE"), "parts[2]");
}

TEST(Request, FlowNameThatNoVariableCanHoldIsOmitted) {
  JobFacts facts = test::make_facts("x");
  facts.job.flow_id = 9;
  facts.job.name = "a";
  facts.job.unknown = {{"flow_data", R"({"flow": "a\u0000b"})"}};
  const TextMap variables = build_variables(facts);
  EXPECT_EQ(variables.at("MYCOJOBS_FLOW_ID"), "9");
  EXPECT_FALSE(variables.contains("MYCOJOBS_FLOW_NAME"));
  EXPECT_EQ(variables.at("MYCOJOBS_NODE"), "a");
}

// The job's own loopback needs no proxy. An address on the host's loopback in the allow-list is reached through the
// proxy.
TEST(Request, GrantedLoopbackPortIsReachedThroughTheProxy) {
  JobFacts facts;
  facts.granted_policy.network = Network::allow_list;
  facts.granted_policy.net_allow = {"example.org:443"};
  EXPECT_EQ(build_variables(facts).at("NO_PROXY"), "localhost,127.0.0.1,::1");
  facts.granted_policy.net_allow = {"example.org:443", "127.0.0.1:18080"};
  EXPECT_EQ(build_variables(facts).at("NO_PROXY"), "localhost,::1");
  EXPECT_EQ(build_variables(facts).at("no_proxy"), "localhost,::1");
  facts.granted_policy.net_allow = {"localhost:*", "127.0.0.1:1", "[::1]:80"};
  EXPECT_EQ(build_variables(facts).at("NO_PROXY"), "");
  facts.job.env_vars = {{"NO_PROXY", "mine"}};
  EXPECT_EQ(build_variables(facts).at("NO_PROXY"), "mine");
}

TEST(Table, NamesAndScriptTypesAreUnique) {
  std::set<std::string> names, types;
  const SystemClock clock;
  for (const auto& executor : create_executors({"/usr/libexec/mycojobs", "", {}, "", "", {}, {}, clock})) {
    EXPECT_TRUE(names.insert(std::string(executor->name())).second);
    for (const auto& type : executor->script_types()) {
      EXPECT_TRUE(types.insert(type).second);
      EXPECT_TRUE(is_script_type(type));
    }
  }
  EXPECT_TRUE(types.count("python"));
}

}  // namespace
}  // namespace mycojobs
