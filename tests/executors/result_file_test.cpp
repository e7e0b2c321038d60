#include "executors/exec/result_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

TextMap parse_texts(std::string_view text) {
  const auto result = parse_result_file(text);
  EXPECT_TRUE(result) << result.error().message;
  return result.value_or(ResultValues{}).texts;
}

std::string get_error(std::string_view text) {
  const auto result = parse_result_file(text);
  return result ? "accepted" : result.error().message;
}

TEST(ResultFile, ByteOrderMarkIsSkipped) {
  EXPECT_EQ(parse_result_file("\xEF\xBB\xBFkey=value\n")->texts, (TextMap{{"key", "value"}}));
  EXPECT_EQ(parse_result_file("\xEF\xBB\xBF{\"key\": \"value\"}")->texts, (TextMap{{"key", "value"}}));
}

TEST(ResultFile, LinesAreKeysAndValues) {
  EXPECT_EQ(parse_texts(""), TextMap());
  EXPECT_EQ(parse_texts("a=1\r\n\nb=x = y\nempty=\na=2"), (TextMap{{"a", "2"}, {"b", "x = y"}, {"empty", ""}}));
}

TEST(ResultFile, MultiLineValuesEndAtTheirWord) {
  EXPECT_EQ(parse_texts("text<<END\none\n\n  END\ntwo=2\nEND\nafter=1\n"),
            (TextMap{{"text", "one\n\n  END\ntwo=2"}, {"after", "1"}}));
  EXPECT_EQ(parse_texts("nothing<<X\nX\n"), (TextMap{{"nothing", ""}}));
  EXPECT_EQ(parse_texts("shift=1<<2\n"), (TextMap{{"shift", "1<<2"}})) << "the equals sign is before <<";
}

TEST(ResultFile, JsonObjectIsReadAsAWhole) {
  EXPECT_EQ(parse_texts(" \n{\"a\": \"text\", \"b\": [1, null], \"c\": {\"d\": true}}\n"),
            (TextMap{{"a", "text"}, {"b", "[1,null]"}, {"c", "{\"d\":true}"}}));
  EXPECT_EQ(parse_result_file(R"({"a": "1", "b": 1})")->json, std::vector<std::string>{"b"});
}

TEST(ResultFile, ErrorsNameTheirLine) {
  EXPECT_THAT(get_error("a=1\nno sign\n"), HasSubstr("line 2: neither key=value nor key<<END: \"no sign\""));
  EXPECT_THAT(get_error("a=1\nb<<END\nx\n"), HasSubstr("line 2: \"b\"<<\"END\" has no line \"END\""));
  EXPECT_THAT(get_error("=1"), HasSubstr("line 1: a key has"));
  EXPECT_THAT(get_error("b<<\n"), HasSubstr("no end mark after <<"));
  EXPECT_THAT(get_error("a=\xff"), HasSubstr("not UTF-8"));
  EXPECT_THAT(get_error("{\"a\": "), HasSubstr("begins like a JSON object"));
  EXPECT_THAT(get_error(std::string(200000, '{')), HasSubstr("begins like a JSON object"));
  EXPECT_THAT(get_error(std::string(1001, 'k') + "=1"), HasSubstr("a key has"));
}

TEST(ResultFile, AnyBytesAreAnAnswerOrAnError) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 60, '\0');
    for (char& c : text) c = "a=<{}\"\n\r:1\xc3\xa4\0"[random() % 14];
    const auto result = parse_result_file(text);
    EXPECT_TRUE(result || !result.error().message.empty());
  }
}

TEST(Progress, IsAFractionAndAText) {
  const auto format_progress = [](std::string_view line) {
    const ProgramProgress progress = parse_progress(line);
    return (progress.fraction ? std::to_string(*progress.fraction).substr(0, 4) : "-") + "|" + progress.text;
  };
  EXPECT_EQ(format_progress("0.4"), "0.40|");
  EXPECT_EQ(format_progress(" 0.4 half of it "), "0.40|half of it");
  EXPECT_EQ(format_progress("40%"), "0.40|");
  EXPECT_EQ(format_progress("40 % on"), "0.40|on");
  EXPECT_EQ(format_progress("3 files"), "-|3 files");
  EXPECT_EQ(format_progress("1e400"), "-|1e400");
  EXPECT_EQ(format_progress("-1 x"), "-|-1 x");
  EXPECT_EQ(format_progress("nan"), "-|nan");
  EXPECT_EQ(format_progress("words"), "-|words");
}

}  // namespace
}  // namespace mycojobs
