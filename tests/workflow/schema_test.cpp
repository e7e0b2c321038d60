#include "base/parse.h"
#include "workflows/manifest/workflow_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "text/document_reader.h"
#include "workflow/stage.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs::workflow_tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A set with these schemas, and its problems.
struct Made {
  SchemaSet set;
  std::string problems;
};
Made made(const json& schemas) {
  Made out;
  DocumentProblems problems;
  for (const auto& [name, schema] : schemas.items()) out.set.add(name, {schema, name, problems});
  out.set.link(problems);
  out.problems = join(problems.release_problems());
  return out;
}
std::string find_problems(const char* schema) { return made({{"a/T@1", json::parse(schema)}}).problems; }
// Returns the encoded bytes in hex, or the error.
std::string checked(const char* schema, const json& value, ValueForm form = ValueForm::from_json) {
  const auto out = made({{"a/T@1", json::parse(schema)}});
  EXPECT_EQ(out.problems, "");
  const auto result = out.set.check("a/T@1", value, form);
  return result ? to_hex(result->bytes) : result.error().message;
}

TEST(WorkflowSchema, NamesHaveANamespaceAndAVersion) {
  for (const char* good : {"com.acme/order.step@1", "a/B_c-d@1.2", "sys/Any@1"})
    EXPECT_TRUE(is_workflow_name(good)) << good;
  for (const char* bad : {"order", "a/b", "/b@1", "a/@1", "a/b@", "A/b@1", "a/b@x", "a/b@.1", "a/b/c@1", "a b/c@1", ""})
    EXPECT_FALSE(is_workflow_name(bad)) << bad;
}

TEST(WorkflowSchema, ValidValueHasOneEncoding) {
  EXPECT_EQ(checked(R"({"type": "integer"})", 2.0), "02");
  EXPECT_EQ(checked(R"({"type": "number"})", 2.0), "02");
  EXPECT_EQ(checked(R"({"type": "number"})", -0.0), "00");
  EXPECT_EQ(checked(R"({"type": "number"})", 1.5), "f93e00");
  EXPECT_EQ(checked("{}", json::parse(R"({"b": 1.0, "a": [null, true]})")), "a2616182f6f5616201");
  EXPECT_EQ(checked(R"({"type": ["null", "string"]})", nullptr), "f6");
  EXPECT_EQ(checked(R"({"type": "string", "format": "bytes"})", "AQI="), "420102");
  EXPECT_EQ(checked(R"({"type": "string", "format": "bytes"})", json::binary({1, 2}), ValueForm::from_cbor), "420102");
  EXPECT_EQ(checked(R"({"enum": [1, "x"]})", "x"), "6178");
  EXPECT_EQ(checked(R"({"const": 3})", 3.0), "03");
  EXPECT_EQ(checked(R"({"type": "object", "additionalProperties": {"type": "integer"}})", {{"k", 1}}), "a1616b01");
  EXPECT_EQ(checked(R"({"oneOf": [{"title": "A", "type": "integer"}]})", {{"$tag", "A"}, {"$value", 1}}),
            "a264247461676141662476616c756501");
}

TEST(WorkflowSchema, IntegersBeyond64BitsAreRejected) {
  const auto set = made({{"a/T@1", json::object()}}).set;
  const auto refused = set.check_text("a/T@1", R"({"v":18446744073709551617})", ValueForm::from_json);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("18446744073709551617 does not fit 64 bits"));
  EXPECT_TRUE(
      set.check_text("a/T@1", R"({"v":18446744073709551615,"t":"18446744073709551617"})", ValueForm::from_json));
}

TEST(WorkflowSchema, InvalidValueIsNamedWithItsPlace) {
  EXPECT_EQ(checked(R"({"type": "integer"})", 1.5), "the value: is the number 1.5, not integer");
  EXPECT_EQ(checked(R"({"type": "integer"})", "one"), "the value: is the text \"one\", not integer");
  EXPECT_EQ(checked(R"({"type": "number"})", std::numeric_limits<double>::infinity()),
            "the value: is no finite number");
  EXPECT_EQ(checked("{}", std::numeric_limits<double>::quiet_NaN()), "the value: is no finite number");
  EXPECT_EQ(checked(R"({"type": "integer", "maximum": 18446744073709551615, "minimum": -9223372036854775808})", -1),
            "20");
  EXPECT_EQ(checked(R"({"type": "integer", "maximum": 9007199254740992})", std::uint64_t{9007199254740993}),
            "the value: is 9007199254740993; at most 9007199254740992");
  EXPECT_EQ(checked(R"({"type": "string", "maxLength": 2})", "äö"), "64c3a4c3b6");
  EXPECT_EQ(checked(R"({"type": "string", "maxLength": 2})", "abc"), "the value: has 3 characters; at most 2");
  EXPECT_EQ(checked(R"({"type": "string", "minLength": 1})", ""), "the value: has 0 characters; at least 1");
  EXPECT_EQ(checked(R"({"type": "string"})", "\xff"), "the value: is not UTF-8");
  EXPECT_EQ(checked(R"({"type": "string", "format": "bytes"})", "%"), "the value: is not base64");
  EXPECT_EQ(checked(R"({"type": "string", "format": "bytes"})", "AQI=", ValueForm::from_cbor),
            "the value: is a text, not a byte string");
  EXPECT_EQ(checked(R"({"type": "string"})", json::binary({1}), ValueForm::from_cbor),
            "the value: is a byte string, not string");
  EXPECT_EQ(checked(R"({"type": "array", "items": {"type": "boolean"}})", {true, 1}),
            "[1]: is the number 1, not boolean");
  EXPECT_EQ(checked(R"({"type": "array", "maxItems": 1})", {1, 2}), "the value: has 2 items; at most 1");
  EXPECT_EQ(checked(R"({"type": "object"})", {{"x", 1}}), "x: is an unknown field");
  EXPECT_EQ(checked(R"({"type": "object", "required": ["a"], "properties": {"a": {}}})", json::object()),
            "a: is missing");
  EXPECT_EQ(checked(R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object",
                       "properties": {"b": {"type": "null"}}}}}})",
                    json::parse(R"({"a": [{}, {"b": 1}]})")),
            "a[1].b: is the number 1, not null");
  EXPECT_EQ(checked(R"({"enum": [1, 2]})", 3), "the value: is the number 3, not one of [1,2]");
  EXPECT_EQ(checked(R"({"oneOf": [{"title": "A"}]})", {{"$tag", "B"}, {"$value", 1}}),
            "$tag: \"B\" is the tag of no arm");
  EXPECT_THAT(checked(R"({"oneOf": [{"title": "A"}]})", 1), HasSubstr("not {\"$tag\": ..., \"$value\": ...}"));
}

TEST(WorkflowSchema, InvalidSchemaIsNamedWithItsPlace) {
  EXPECT_THAT(find_problems(R"({"typ": "integer"})"),
              HasSubstr("a/T@1.typ: is not a supported word of schemas; did you mean \"type\"?"));
  EXPECT_THAT(find_problems(R"({"type": "int"})"), HasSubstr("is not a type"));
  EXPECT_THAT(find_problems("1"), HasSubstr("not a schema"));
  EXPECT_THAT(find_problems(R"({"minLength": 1})"), HasSubstr("has no effect without the type string"));
  EXPECT_THAT(find_problems(R"({"type": "integer", "items": {}})"), HasSubstr("has no effect without the type array"));
  EXPECT_THAT(find_problems(R"({"type": "integer", "minimum": 3, "maximum": 2})"), HasSubstr("is above its maximum"));
  EXPECT_THAT(find_problems(R"({"type": "string", "maxLength": -1})"), HasSubstr("not a whole number from 0"));
  EXPECT_THAT(find_problems(R"({"type": "string", "format": "date"})"), HasSubstr("the only format is bytes"));
  EXPECT_THAT(find_problems(R"({"type": "object", "required": ["a"]})"), HasSubstr("is not among the properties"));
  EXPECT_THAT(find_problems(R"({"$ref": "a/None@1"})"), HasSubstr("there is no schema"));
  EXPECT_THAT(find_problems(R"({"$ref": "a/T@1"})"), HasSubstr("leads back to itself"));
  EXPECT_THAT(find_problems(R"({"$ref": "sys/Any@1", "type": "integer"})"), HasSubstr("is redundant beside $ref"));
  EXPECT_THAT(find_problems(R"({"oneOf": []})"), HasSubstr("one at least"));
  EXPECT_THAT(find_problems(R"({"oneOf": [{"type": "integer"}]})"), HasSubstr("needs a title or a $ref"));
  EXPECT_THAT(find_problems(R"({"oneOf": [{"title": "A"}, {"title": "A", "type": "null"}]})"),
              HasSubstr("another arm has the tag"));
  EXPECT_THAT(find_problems(R"({"oneOf": [{"$ref": "sys/Any@1"}, {"title": "B", "$ref": "sys/Any@1"}]})"),
              HasSubstr("another arm has the same schema"));
  EXPECT_THAT(find_problems(R"({"enum": []})"), HasSubstr("one at least"));
  EXPECT_THAT(find_problems(R"({"enum": [1], "const": 1})"), HasSubstr("is redundant beside const"));
}

TEST(WorkflowSchema, SchemaMayContainItself) {
  const auto out = made({{"a/T@1", json::parse(R"({"type": "object", "properties": {"next": {"$ref": "a/T@1"}}})")}});
  EXPECT_EQ(out.problems, "");
  EXPECT_TRUE(out.set.check("a/T@1", json::parse(R"({"next": {"next": {}}})"), ValueForm::from_json));
  json deep = json::object();
  for (int i = 0; i < 100; ++i) deep = json{{"next", deep}};
  EXPECT_THAT(out.set.check("a/T@1", deep, ValueForm::from_json).error().message, HasSubstr("deeper than 64 levels"));
}

TEST(WorkflowSchema, EventIsAcceptedPlainOrAsAnArm) {
  const auto out =
      made({{"a/E@1", {{"oneOf", json::array({{{"title", "X"}, {"$ref", "a/X@1"}}, {{"$ref", "sys/Any@1"}}})}}},
            {"a/X@1", json::object()}});
  EXPECT_EQ(out.set.find_arm("a/E@1", "a/E@1"), "");
  EXPECT_EQ(out.set.find_arm("a/E@1", "a/X@1"), "X");
  EXPECT_EQ(out.set.find_arm("a/E@1", "sys/Any@1"), "sys/Any@1");
  EXPECT_EQ(out.set.find_arm("a/E@1", "a/None@1"), std::nullopt);
  EXPECT_EQ(out.set.find_arm("a/X@1", "a/E@1"), std::nullopt);
  EXPECT_TRUE(out.set.has_path("a/E@1", "$value.x"));
  EXPECT_FALSE(out.set.has_path("a/E@1", "x"));
  EXPECT_EQ(*find_at_path(json::parse(R"({"a": {"b": 1}})"), "a.b"), 1);
  EXPECT_EQ(find_at_path(json::parse(R"({"a": {"b": 1}})"), "a.c"), nullptr);
  EXPECT_EQ(find_at_path(json(1), "a"), nullptr);
}

TEST(WorkflowSchema, PlaceholderIsValid) {
  const auto out =
      made({{"a/T@1", json::parse(R"({"type": "object", "required": ["i", "s", "l", "v", "b"], "properties": {
      "i": {"type": "integer", "minimum": 2.5}, "s": {"type": "string", "minLength": 2}, "o": {"type": "string"},
      "l": {"type": "array", "minItems": 2, "items": {"enum": ["x"]}},
      "v": {"oneOf": [{"title": "Loop", "$ref": "a/T@1"}, {"title": "End", "type": "null"}]},
      "b": {"type": "string", "format": "bytes", "minLength": 1}}})")},
            {"a/Loop@1", json::parse(R"({"type": "object", "required": ["n"], "properties": {
      "n": {"$ref": "a/Loop@1"}}})")}});
  ASSERT_EQ(out.problems, "");
  EXPECT_TRUE(out.set.placeholder("a/T@1"));
  EXPECT_EQ((*out.set.placeholder("a/T@1")->value)["i"], 3);
  EXPECT_EQ(out.set.placeholder("a/Loop@1").error().code, Code::unsupported);
}

TEST(WorkflowSchema, SystemSchemasAreComplete) {
  const SchemaSet set;
  for (const auto& name : set.names()) {
    EXPECT_TRUE(is_workflow_name(name) && is_system_name(name)) << name;
    EXPECT_TRUE(set.placeholder(name)) << name;
  }
  for (const auto& effect : system_effects())
    EXPECT_TRUE(set.has(effect.params) && set.has(effect.receipt)) << effect.name;
  EXPECT_TRUE(set.check("sys/timer.params@1", {{"after_ms", 5}}, ValueForm::from_json));
  EXPECT_FALSE(
      set.check("sys/approval.params@1", {{"title", "t"}, {"approvers", json::array()}}, ValueForm::from_json));
}

TEST(WorkflowSchema, BytesMustBeCanonical) {
  const SchemaSet set;
  EXPECT_TRUE(set.check_bytes("sys/Any@1", "\x01"));
  EXPECT_FALSE(set.check_bytes("sys/Any@1", std::string("\x18\x01", 2)));
  EXPECT_EQ(set.check("sys/Any@1", std::string(2000, 'x'), ValueForm::from_json, 1000).error().code, Code::too_large);
}

}  // namespace
}  // namespace mycojobs::workflow_tests
