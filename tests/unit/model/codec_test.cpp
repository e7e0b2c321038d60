#include "model/codec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/json.h"
#include "text/utf8.h"
#include "unit/random_records.h"

namespace mycojobs {
namespace {

using nlohmann::json;

template <class Record>
class Codec : public ::testing::Test {};
using Records = ::testing::Types<Actor, Context, Flow, Message, Runner, Job>;
TYPED_TEST_SUITE(Codec, Records);

TYPED_TEST(Codec, HashKeepsEveryFieldAndEveryByte) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const auto record = RandomRecords(seed, Bytes::any).make<TypeParam>();
    const Fields hash = encode(record);
    const auto decoded = decode<TypeParam>(hash);
    EXPECT_TRUE(decoded.ok()) << seed << ": " << join(decoded.problems);
    EXPECT_EQ(encode(decoded.record), hash) << seed;
    visit(record, [&]<class T>(std::string_view name, const T& member, JsonTextStyle = JsonTextStyle::plain) {
      visit(decoded.record,
            [&]<class U>(std::string_view decoded_name, const U& decoded_member, JsonTextStyle = JsonTextStyle::plain) {
              if constexpr (std::is_same_v<T, U> && (std::is_scalar_v<T> || std::is_same_v<T, std::string>)) {
                if (name == decoded_name) {
                  EXPECT_EQ(member, decoded_member) << seed << name;
                }
              }
            });
    });
    EXPECT_EQ(decoded.record.unknown, record.unknown);
  }
}

TYPED_TEST(Codec, JsonKeepsEveryFieldThatIsUtf8) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const auto record = RandomRecords(seed, Bytes::utf8).make<TypeParam>();
    const json tree = to_json(record);
    const auto parsed = parse_json(dump_json(tree));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*parsed, tree);
    const auto decoded = decode_json<TypeParam>(*parsed);
    EXPECT_TRUE(decoded.ok()) << seed << ": " << join(decoded.problems);
    EXPECT_EQ(to_json(decoded.record), tree) << seed;
  }
}

TYPED_TEST(Codec, JsonOfAnyBytesIsAlwaysUtf8) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const json tree = to_json(RandomRecords(seed, Bytes::any).make<TypeParam>());
    EXPECT_NO_THROW({ const auto dumped_text = tree.dump(); });
  }
}

TYPED_TEST(Codec, AnyHashOfAnyBytesIsHandled) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomRecords random(seed, Bytes::any);
    Fields hash;
    visit(*std::make_unique<TypeParam>(),
          [&](std::string_view name, const auto&, JsonTextStyle = JsonTextStyle::plain) {
            hash.emplace_back(name, random.make_text(Bytes::any));
          });
    const auto decoded = decode<TypeParam>(hash);
    for (const auto& problem : decoded.problems) EXPECT_TRUE(is_utf8(problem.message));
    static_cast<void>(encode(decoded.record));
  }
}

TYPED_TEST(Codec, MissingAndEmptyFieldsAreEqual) {
  Fields empty_fields;
  visit(*std::make_unique<TypeParam>(), [&](std::string_view name, const auto&, JsonTextStyle = JsonTextStyle::plain) {
    empty_fields.emplace_back(name, "");
  });
  EXPECT_TRUE(decode<TypeParam>(empty_fields).ok());
  EXPECT_EQ(encode(decode<TypeParam>(empty_fields).record), encode(decode<TypeParam>({}).record));
}

TYPED_TEST(Codec, UnknownFieldsAreUnchanged) {
  const Fields unknown_fields = {{"zz_other", "\xFF\x00 bytes"}, {"", "x"}, {"Status", "y"}, {"id ", "4"}};
  const auto decoded = decode<TypeParam>(unknown_fields);
  EXPECT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.record.unknown, unknown_fields);
}

TYPED_TEST(Codec, NonObjectIsOneProblem) {
  for (const char* text : {"[]", "5", "\"x\"", "null", "[{}]"}) {
    EXPECT_EQ(decode_json<TypeParam>(json::parse(text)).problems.size(), 1U) << text;
  }
}

DecodeResult<Job> decode_job_field(const std::string& field, const std::string& text) {
  return decode<Job>({{field, text}});
}
std::string decode_error(const std::string& field, const std::string& text) {
  return join(decode_job_field(field, text).problems);
}

TEST(JobHash, MatchesTheDocuments) {
  Job job;
  job.id = 2001;
  job.caller_id = 12;
  job.script = "print(1)\n\xFF";
  job.timeout = 60;
  job.env_vars = {{"A", "1"}, {"B", "\xC3\xA9"}};
  job.dependends = {3, 4};
  job.status = JobStatus::waiting_for_prerequisites;
  job.unknown = {{"x-theirs", "keep"}};
  const Fields expected = {{"id", "2001"},
                           {"caller_id", "12"},
                           {"script", "print(1)\n\xFF"},
                           {"timeout", "60"},
                           {"env_vars", "{\"A\":\"1\",\"B\":\"\xC3\xA9\"}"},
                           {"dependends", "[3,4]"},
                           {"status", "waiting_for_prerequisites"},
                           {"x-theirs", "keep"}};
  EXPECT_EQ(encode(job), expected);
  Runner runner;
  runner.local = true;
  EXPECT_EQ(encode(runner), (Fields{{"local", "true"}}));
}

TEST(JobHash, InvalidTimeoutIsNamed) {
  for (const char* text :
       {"-1", "4294967296", "1e3", "abc", "1.0", "+1", " 1", "1 ", "0x10", "99999999999999999999999"}) {
    const auto decoded = decode_job_field("timeout", text);
    ASSERT_EQ(decoded.problems.size(), 1U) << text;
    EXPECT_EQ(decoded.problems[0].field, "timeout");
    EXPECT_NE(decoded.problems[0].message.find(" is not a whole number from 1 to 4294967295"), std::string::npos);
    EXPECT_FALSE(decoded.record.timeout) << "the default value is used";
  }
  EXPECT_EQ(decode_error("timeout", "-1"), "timeout: -1 is not a whole number from 1 to 4294967295");
  EXPECT_EQ(decode_error("timeout", "abc"), "timeout: \"abc\" is not a whole number from 1 to 4294967295");
  EXPECT_EQ(decode_job_field("timeout", "4294967295").record.timeout, 4294967295U);
  EXPECT_EQ(decode_job_field("timeout", "0").record.timeout, 0U) << "validate() rejects the value";
}

TEST(JobHash, IdsAndCountsDoNotOverflow) {
  EXPECT_EQ(decode_error("id", "4294967296"), "id: 4294967296 is not a whole number from 1 to 4294967295");
  EXPECT_EQ(decode_error("retries", "256"), "retries: 256 is not a whole number from 0 to 255");
  EXPECT_EQ(decode_error("epoch", "18446744073709551616"),
            "epoch: 18446744073709551616 is not a whole number from 0 to 18446744073709551615");
  EXPECT_EQ(decode_job_field("epoch", "18446744073709551615").record.epoch, 18446744073709551615U);
  EXPECT_EQ(decode_error("dependends", "[1,4294967296]"),
            "dependends[1]: 4294967296 is not a whole number from 1 to 4294967295");
  EXPECT_EQ(decode_error("dependends", "[1.5]"), "dependends[0]: 1.5 is not a whole number from 1 to 4294967295");
  EXPECT_EQ(decode_error("priority", "1e9"), "priority: 1e9 is not a whole number from -100 to 100");
}

TEST(JobHash, ListInPlaceOfAMapIsNamedUnlessEmpty) {
  EXPECT_TRUE(decode_job_field("env_vars", "[]").ok());
  EXPECT_TRUE(decode_job_field("dependends", "{}").ok());
  EXPECT_EQ(decode_error("env_vars", "[1]"), "env_vars: \"[1]\" is not a map");
  EXPECT_EQ(decode_error("dependends", "{\"1\":2}"), "dependends: \"{\"1\":2}\" is not a list");
  EXPECT_EQ(decode_error("env_vars", "\"{}\""), "env_vars: \"\"{}\"\" is not a list or a map");
  EXPECT_EQ(decode_error("env_vars", "{\"A\":[]}"), "env_vars[\"A\"]: \"[]\" is not a single value");
  EXPECT_EQ(decode_error("dependends", "[null]"), "dependends[0]: is null");
}

TEST(JobHash, InvalidJsonIsNamedWithItsPlace) {
  EXPECT_EQ(decode_error("env_vars", "{\"A\":"),
            "env_vars: not JSON at line 1 column 6: unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(decode_error("result", "{\"A\":1,\n\"A\":2}"),
            "result: JSON has the same key twice in one object at line 2 column 1");
  EXPECT_NE(decode_error("env_vars", "{\"A\":\"\xFF\"}").find("ill-formed UTF-8"), std::string::npos);
}

TEST(JobHash, EnumsNeedTheExactWord) {
  EXPECT_EQ(decode_error("status", "Started"),
            "status: \"Started\" is not one of dispatched, waiting_for_prerequisites, started, error, finished");
  EXPECT_EQ(decode_job_field("status", "Started").record.status, JobStatus::dispatched);
  EXPECT_EQ(join(decode<Runner>({{"local", "yes"}}).problems), "local: \"yes\" is not true or false");
}

TEST(JobHash, InvalidFieldDoesNotAffectOthers) {
  const auto decoded = decode<Job>({{"id", "x"}, {"script", "\xFF\xFE"}, {"caller_id", "12"}, {"env_vars", "{"}});
  EXPECT_EQ(decoded.problems.size(), 2U);
  EXPECT_EQ(decoded.record.script, "\xFF\xFE");
  EXPECT_EQ(decoded.record.caller_id, 12U);
}

TEST(JobHash, ScriptOfTenMebibytesOfAnyBytesRoundTrips) {
  std::string script;
  for (std::size_t i = 0; i < (10U << 20); ++i) script.push_back(static_cast<char>(i * 7 % 256));
  EXPECT_EQ(decode_job_field("script", script).record.script, script);
}

TEST(JobHash, MessagesShowAShortPrintableValue) {
  const std::string message = decode_error("timeout", std::string(1U << 20, '\x1B'));
  EXPECT_LT(message.size(), 140U);
  EXPECT_EQ(message.find('\x1B'), std::string::npos);
}

TEST(JobJson, TextAndNumbersAreInterchangeable) {
  const auto decoded = decode_json<Job>(json::parse(
      R"({"id":"7","timeout":"60","script":5,"env_vars":{"A":1,"B":true},"dependends":["3",4],"result":"{\"x\":\"y\"}"})"));
  EXPECT_TRUE(decoded.ok()) << join(decoded.problems);
  EXPECT_EQ(decoded.record.id, 7U);
  EXPECT_EQ(decoded.record.timeout, 60U);
  EXPECT_EQ(decoded.record.script, "5");
  EXPECT_EQ(decoded.record.env_vars, (TextMap{{"A", "1"}, {"B", "true"}}));
  EXPECT_EQ(decoded.record.dependends, (std::vector<Id>{3, 4}));
  EXPECT_EQ(decoded.record.result, (TextMap{{"x", "y"}}));
}

TEST(JobJson, WrongTypesAreNamed) {
  const auto decoded =
      decode_json<Job>(json::parse(R"({"id":-1,"timeout":1.5,"script":{},"retries":[],"env_vars":5})"));
  EXPECT_EQ(decoded.problems.size(), 5U) << join(decoded.problems);
  EXPECT_TRUE(decode_json<Job>(json::parse(R"({"id":null,"script":null})")).ok()) << "null means absent";
}

TEST(JobJson, RequestsMayUseOtherNames) {
  const auto decoded = decode_json<Job>(json::parse(R"({"payload":"p","executor":"python","depends_on":[1]})"));
  EXPECT_EQ(decoded.record.script, "p");
  EXPECT_EQ(decoded.record.script_type, "python");
  EXPECT_EQ(decoded.record.dependends, std::vector<Id>{1});
  EXPECT_TRUE(decoded.record.unknown.empty());
  EXPECT_EQ(decode_json<Job>(json::parse(R"({"depends":[2]})")).record.dependends, std::vector<Id>{2});
  EXPECT_EQ(join(decode_json<Job>(json::parse(R"({"payload":"p","script":"s"})")).problems),
            "script: is given twice, as script and as payload");
  EXPECT_FALSE(decode_json<Job>(json::parse(R"({"depends":[2],"depends_on":[3]})")).ok());
  EXPECT_EQ(decode<Job>({{"payload", "p"}}).record.script, "") << "a hash has no alternative field names";
}

TEST(JobJson, EmbeddedJsonTextsAppearAsObjects) {
  const auto decoded = decode<Job>({{"usage", R"({"wall_us":5})"}, {"receipt", "broken{"}, {"error_info", "[1]"}});
  const json tree = to_json(decoded.record);
  EXPECT_EQ(tree["usage"]["wall_us"], 5);
  EXPECT_EQ(tree["receipt"], "broken{");
  EXPECT_EQ(tree["error_info"], "[1]");
  EXPECT_EQ(decode_json<Job>(tree).record.usage, R"({"wall_us":5})");
  EXPECT_EQ(join(decode_json<Job>(json::parse(R"({"layers":{}})")).problems), "layers: \"{}\" is not a single value");
}

TEST(LogJson, AlwaysHasEveryField) {
  EXPECT_EQ(dump_json(to_json(Log{})), R"({"seq":0,"stream":"stdout","text":"","ts_ms":0})");
  const Log line{5, 7, LogStream::system, "a\xFF"};
  const auto decoded = decode_json<Log>(to_json(line));
  EXPECT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.record.stream, LogStream::system);
  EXPECT_EQ(decoded.record.text, "a\xEF\xBF\xBD");
}

// Regression test for a bug found by fuzzing: as an object the text would exceed the depth limit of the message's hash.
TEST(MessageHash, DeepTextInAnEmbeddedJobIsHarmless) {
  for (const std::size_t levels : {20U, 40U, 62U}) {
    Message message;
    message.job.resize(1);
    message.job[0].error_info = R"({"a":)" + std::string(levels, '[') + std::string(levels, ']') + '}';
    EXPECT_EQ(to_json(message)["job"][0]["error_info"].is_object(), levels == 20) << levels;
    const auto decoded = decode<Message>(encode(message));
    EXPECT_EQ(join(decoded.problems), "");
    ASSERT_EQ(decoded.record.job.size(), 1U);
    EXPECT_EQ(decoded.record.job[0].error_info, message.job[0].error_info);
  }
}

TEST(MessageHash, ProblemsInsideAnEmbeddedJobAreNamedWithTheirPath) {
  const auto decoded = decode<Message>({{"job", R"([{"id":1},{"id":2,"timeout":"soon","payload":"x"}])"}});
  EXPECT_EQ(join(decoded.problems), "job[1].timeout: \"soon\" is not a whole number from 1 to 4294967295");
  ASSERT_EQ(decoded.record.job.size(), 2U);
  EXPECT_EQ(decoded.record.job[1].script, "x");
  EXPECT_EQ(join(decode<Message>({{"job", "[5]"}}).problems), "job[0]: 5 is not an object");
}

TEST(HashFields, AreFoundByNameOrAreEmpty) {
  const Fields fields{{"a", "1"}, {"b", "x7"}, {"c", "18446744073709551616"}, {"d", ""}};
  EXPECT_EQ(field_of(fields, "b"), "x7");
  EXPECT_EQ(field_of(fields, "e"), "");
  EXPECT_EQ(number_of(fields, "a"), 1U);
  for (const char* name : {"b", "c", "d", "e"}) EXPECT_EQ(number_of(fields, name), 0U) << name;
}

TEST(MessageHash, HostileListsCauseFewProblems) {
  std::string jobs = "[";
  for (int i = 0; i < 1000; ++i) jobs += R"({"timeout":"x"},)";
  jobs.back() = ']';
  EXPECT_LE(decode<Message>({{"job", jobs}}).problems.size(), 16U);
}

}  // namespace
}  // namespace mycojobs
