// Inputs of a flow: declarations, given values, and errors for invalid values.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flow/run_world.h"
#include "flows/flow_plan.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

ParsedPlan read(const std::string& inputs, const std::string& given = "{}") {
  const auto definition = parse_json(R"({"name": "x", "inputs": )" + inputs + R"(, "given": )" + given +
                                     R"(, "jobs": {"a": {"log": "x"}}})");
  if (!definition) return {std::nullopt, {{"", definition.error().message}}};
  return read_plan(*definition);
}
std::string inputs_refusal(const std::string& inputs, const std::string& given = "{}") {
  const ParsedPlan plan = read(inputs, given);
  return plan.plan ? "accepted" : join(plan.problems);
}

TEST(FlowInputs, HaveTheGivenOrDefaultValue) {
  const ParsedPlan plan =
      read(R"({"region": {"type": "string", "default": "eu", "enum": ["eu", "us"]}, "count": "integer",
                                 "share": "number", "dry": {"type": "boolean", "default": false}, "files": "list",
                                 "more": {"type": "object", "required": false}})",
           R"({"count": 3, "share": 0.5, "files": [1, "b"]})");
  ASSERT_TRUE(plan.plan) << join(plan.problems);
  EXPECT_EQ(plan.plan->values,
            (std::map<std::string, std::string>{
                {"count", "3"}, {"dry", "false"}, {"files", "[1,\"b\"]"}, {"region", "\"eu\""}, {"share", "0.5"}}));
  EXPECT_EQ(plan.plan->input_texts.at("region"), "eu") << "conditions use the text without quotes";
  EXPECT_TRUE(plan.plan->missing.empty());
  EXPECT_EQ(inputs_to_json(*plan.plan).at("files"), json::parse("[1,\"b\"]"));
}

TEST(FlowInputs, MissingInputIsNamedAtCreation) {
  const ParsedPlan plan = read(R"({"region": "string", "count": "integer"})", R"({"count": 3})");
  ASSERT_TRUE(plan.plan) << "a definition without inputs is valid";
  EXPECT_EQ(describe_missing_inputs(*plan.plan),
            "inputs: region is required and not given; region is of type string (--input region=VALUE)");
}

TEST(FlowInputs, BelongToTheRunByItsDefinition) {
  json definition = json::parse(R"({"name": "x", "inputs": {"n": "integer"}, "jobs": {"a": {"log": "x"}}})");
  json other = definition;
  ASSERT_TRUE(apply_inputs(definition, {{"n", 1}}));
  ASSERT_TRUE(apply_inputs(other, {{"n", 2}}));
  EXPECT_NE(read_plan(definition).plan->hash, read_plan(other).plan->hash);
  const auto back = parse_stored_plan(read_plan(other).plan->canonical, read_plan(other).plan->hash);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->values.at("n"), "2");
  EXPECT_FALSE(apply_inputs(definition, json::array()));
}

TEST(FlowInputs, InvalidInputIsRejectedByName) {
  EXPECT_EQ(inputs_refusal("7"),
            "inputs: is the number 7, not a map from names to types, such as {region: {type: string, "
            "default: eu}}");
  EXPECT_EQ(inputs_refusal(R"({"Region": "string"})"),
            "inputs.Region: \"Region\" is not a valid name of an input: use 1 to 64 of a-z, 0-9 and '_', with a letter "
            "first");
  EXPECT_EQ(
      inputs_refusal(R"({"n": "int"})"),
      "inputs.n: \"int\" is not a type of an input; the types are string, integer, number, boolean, list and object");
  EXPECT_EQ(inputs_refusal(R"({"n": {}})"),
            "inputs.n: type: is missing: give string, integer, number, boolean, list or object");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "integer", "defualt": 1}})"),
            "inputs.n.defualt: unknown field of an input; the fields are type, default, required, enum and comment; "
            "did you mean \"default\"?");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "integer", "default": "1"}})"),
            "inputs.n.default: input n is the text 1, not an integer");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "string", "default": 1}})"),
            "inputs.n.default: input n is the number 1, not a string: quote it");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "integer", "default": 1, "required": true}})"),
            "inputs.n.required: has a default: it is never missing");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "string", "default": "x", "enum": ["a", "b"]}})"),
            "inputs.n.default: input n is \"x\", which is not one of \"a\", \"b\"");
  EXPECT_EQ(inputs_refusal(R"({"n": {"type": "string", "enum": []}})"),
            "inputs.n.enum: is a list, not a list of the values that it may have");
  EXPECT_EQ(inputs_refusal(R"({"n": "integer"})", R"({"n": 1.5})"),
            "given.n: input n is the number 1.5, not an integer");
  EXPECT_EQ(inputs_refusal(R"({"count": "integer"})", R"({"cuont": 1})"),
            "given.cuont: there is no input \"cuont\"; did you mean \"count\"?");
  EXPECT_EQ(inputs_refusal("{}", R"({"n": 1})"), "given.n: there is no input \"n\": the flow declares none (inputs)");
  EXPECT_EQ(inputs_refusal(R"({"n": "string"})", R"({"n": ")" + std::string(kMaxInputBytes, 'x') + "\"}").substr(0, 33),
            "inputs: their values have 65538 b");
}

TEST(FlowInputs, TypedTextIsParsedByType) {
  const json definition = json::parse(R"({"inputs": {"name": "string", "n": {"type": "integer"}, "all": "list"}})");
  EXPECT_EQ(*parse_input(definition, "name", "7"), json("7"));
  EXPECT_EQ(*parse_input(definition, "n", "7"), json(7));
  EXPECT_EQ(*parse_input(definition, "all", "[1, 2]"), json::parse("[1,2]"));
  EXPECT_EQ(parse_input(definition, "n", "seven").error().message, "input n: \"seven\" is not of type \"integer\"");
  EXPECT_EQ(parse_input(definition, "nmae", "x").error().message,
            "the flow has no input \"nmae\"; did you mean \"name\"?");
}

TEST(FlowInputs, ConditionsAndEachReadInputs) {
  const std::string yaml = R"(
name: x
inputs: {region: {type: string, default: eu}, files: {type: list, default: [1, 2]}}
jobs:
  parts: {each: inputs.files, script: ok, type: python}
  eu: {log: eu, when: {key: inputs.region, equals: eu}}
  us: {log: us, when: {key: inputs.region, equals: us}}
)";
  RunWorld deployment(yaml);
  deployment.start();
  EXPECT_EQ(deployment.describe_node("eu"), "completed ok");
  EXPECT_EQ(deployment.describe_node("us"), "cancelled skipped");
  EXPECT_EQ(deployment.node("us").error, "inputs.region is \"eu\", not \"us\"");
  EXPECT_EQ(deployment.describe_node("parts[1]"), "dispatched queued");
}

TEST(FlowInputs, ReferenceToAnUnknownInputIsRejected) {
  const auto get_error = [](const std::string& jobs) {
    const auto parsed =
        parse_json(R"({"name": "x", "inputs": {"n": "integer"}, "given": {"n": 1}, "jobs": )" + jobs + "}");
    const ParsedPlan plan = read_plan(*parsed);
    return plan.plan ? "accepted" : join(plan.problems);
  };
  EXPECT_EQ(get_error(R"({"a": {"log": "x", "when": {"key": "inputs.m", "equals": 1}}})"),
            "jobs.a.when.key: there is no input \"m\"");
  EXPECT_EQ(get_error(R"({"a": {"script": "x", "type": "v", "each": "inputs.n"}})"),
            "jobs.a.each: the input n is of type integer, not list or object");
  EXPECT_EQ(get_error(R"({"inputs": {"log": "x"}})"),
            "jobs.inputs: the name \"inputs\" means the flow's inputs here: choose another");
  EXPECT_EQ(get_error(R"({"a": {"flow": {"name": "y", "inputs": {"m": "list"}, "jobs": {"b": {"log": "x"}}}}})"),
            "jobs.a.flow: its input m has no value: give it a default, or given: {m: ...}");
}

TEST(FlowData, ForeignRecordDataIsRead) {
  Job job;
  job.dependends = {5, 6};
  job.unknown = {{kFlowDataField, R"({"inputs": {"region": "eu", "all": [1], "Odd": 1, "nul": "a\u0000b"},
                                      "each": {"index": 2, "value": {"a": 1}}, "signals": 7,
                                      "joins": {"parts": [6, 99, "x", 5], "none": 7}})"}};
  const FlowData data = parse_flow_data(job);
  EXPECT_FALSE(data.values->contains("signals"));
  EXPECT_EQ(data.joins.at("parts"), (std::vector<Id>{6, 5})) << "99 is not a dependency of the job";
  EXPECT_TRUE(data.joins.at("none").empty());
  EXPECT_EQ(flow_environment(data), (TextMap{{"MYCOJOBS_EACH", R"({"a":1})"},
                                             {"MYCOJOBS_EACH_INDEX", "2"},
                                             {"MYCOJOBS_INPUT_ALL", "[1]"},
                                             {"MYCOJOBS_INPUT_REGION", "eu"}}));
  job.unknown = {{kFlowDataField, R"({"flow": "nightly", "expand": {"env": ["A", 7], "args": [0, "x", 2]}})"}};
  EXPECT_EQ(parse_flow_data(job).flow_name, "nightly");
  EXPECT_EQ(parse_flow_data(job).expanded_variables, std::vector<std::string>{"A"});
  EXPECT_EQ(parse_flow_data(job).expanded_args, (std::vector<std::size_t>{0, 2}));
  for (const char* text : {"", "7", "{broken", "[]", R"({"inputs": 7, "joins": []})"}) {
    job.unknown = {{kFlowDataField, text}};
    EXPECT_TRUE(parse_flow_data(job).values->empty()) << text;
  }
}

}  // namespace
}  // namespace mycojobs
