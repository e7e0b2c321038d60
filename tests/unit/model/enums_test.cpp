#include "model/enums.h"

#include <gtest/gtest.h>

#include "model/records.h"

namespace mycojobs {
namespace {

template <class Enum>
class EnumWords : public ::testing::Test {};
using AllEnums = ::testing::Types<FlowStatus, JobStatus, MessageStatus, MessageType, MessageFormatType, RunnerType,
                                  NodeStatus, LogStream>;
TYPED_TEST_SUITE(EnumWords, AllEnums);

TYPED_TEST(EnumWords, EveryWordRoundTrips) {
  const auto names = enum_names<TypeParam>();
  ASSERT_FALSE(names.empty());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto value = static_cast<TypeParam>(i);
    EXPECT_EQ(to_string(value), names[i]);
    EXPECT_EQ(parse<TypeParam>(names[i]), value);
  }
}

TYPED_TEST(EnumWords, CaseAndBlanksAreSignificant) {
  for (auto name : enum_names<TypeParam>()) {
    std::string upper(name);
    upper[0] = static_cast<char>(upper[0] - 'a' + 'A');
    EXPECT_FALSE(parse<TypeParam>(upper)) << upper;
    EXPECT_FALSE(parse<TypeParam>(std::string(name) + ' '));
  }
  EXPECT_FALSE(parse<TypeParam>(""));
}

TYPED_TEST(EnumWords, ValueOutsideTheTableHasNoWord) { EXPECT_EQ(to_string(static_cast<TypeParam>(99)), "?"); }

TEST(EnumWords, MatchTheDocuments) {
  EXPECT_EQ(to_string(JobStatus::waiting_for_prerequisites), "waiting_for_prerequisites");
  EXPECT_EQ(to_string(FlowStatus::finished), "finished");
  EXPECT_EQ(to_string(MessageStatus::processed), "processed");
  EXPECT_EQ(to_string(MessageFormatType::md), "md");
  EXPECT_EQ(to_string(RunnerType::rust), "rust");
  EXPECT_EQ(to_string(NodeStatus::cancelled), "cancelled");
  EXPECT_EQ(to_string(LogStream::out), "stdout");
}

TEST(ScriptType, IsAShortLowerCaseName) {
  for (auto name : {"osis", "sal", "v", "python", "native", "my-tool_2"}) EXPECT_TRUE(is_script_type(name)) << name;
  for (auto name : {"", "Python", "2fast", "-x", "_x", "a b", "a/b", "a:b", "caf\xC3\xA9"}) {
    EXPECT_FALSE(is_script_type(name)) << name;
  }
  EXPECT_TRUE(is_script_type(std::string(32, 'a')));
  EXPECT_FALSE(is_script_type(std::string(33, 'a')));
  EXPECT_FALSE(is_script_type(std::string_view("py\0thon", 7)));
}

TEST(Keys, MatchTheDocuments) {
  Job job;
  job.caller_id = 12;
  job.id = 2001;
  EXPECT_EQ(redis_key(job), "job:12:2001");
  EXPECT_EQ(job_key(12, 2001), "job:12:2001");
  Message message;
  message.caller_id = 12;
  message.id = 101;
  EXPECT_EQ(redis_key(message), "message:12:101");
  Actor actor;
  actor.id = 12;
  EXPECT_EQ(redis_key(actor), "actor:12");
  Context context;
  context.id = 7;
  EXPECT_EQ(redis_key(context), "context:7");
  Flow flow;
  flow.id = 33;
  EXPECT_EQ(redis_key(flow), "flow:33");
  Runner runner;
  runner.id = 4294967295;
  EXPECT_EQ(redis_key(runner), "runner:4294967295");
  EXPECT_EQ(queue_key("python"), "queue:python");
}

}  // namespace
}  // namespace mycojobs
