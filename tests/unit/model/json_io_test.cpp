#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/codec.h"
#include "text/json.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {

std::string parse_error(std::string_view text) {
  const auto parsed = parse_json(text);
  return parsed ? "" : parsed.error().message;
}

TEST(Json, DepthIsCappedBeforeParsing) {
  const std::string deepest_text = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(parse_error(deepest_text), "");
  EXPECT_EQ(parse_error('[' + deepest_text + ']'), "JSON nests deeper than 64 levels at line 1 column 65");
  EXPECT_NE(parse_error(std::string(8U << 20, '[')), "");
  EXPECT_NE(parse_error(std::string(8U << 20, '{')), "");
  EXPECT_EQ(parse_error('"' + std::string(1000, '[') + "\\\"[" + '"'), "") << "brackets in a string do not nest";
}

TEST(Json, SizeIsCappedBeforeParsing) {
  const auto parsed = parse_json("[1,2,3]", 6);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Code::too_large);
  EXPECT_EQ(parsed.error().message, "JSON of 7 bytes is over the limit of 6 bytes");
}

TEST(Json, DuplicateKeysAreRejectedWithTheirPlace) {
  EXPECT_EQ(parse_error("{\"a\":1,\n  \"b\":{\"a\":2},\n  \"a\":3}"),
            "JSON has the same key twice in one object at line 3 column 3");
  EXPECT_NE(parse_error(R"({"a":1,"\u0061":2})"), "") << "the same key in another spelling";
  EXPECT_EQ(parse_error(R"([{"a":1},{"a":2}])"), "");
}

// The library's parser with a callback scans all members at the end of each object: 10^10 steps for this text.
TEST(Json, ManyObjectsNeedLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{}";
  EXPECT_EQ(parse_error(text + "}"), "");
  EXPECT_NE(parse_error(text + ",\"7\":{}}"), "");
}

TEST(Json, ErrorsNameLineAndColumnAndNotTheInput) {
  EXPECT_EQ(parse_error("{\n  \"a\": tru\n}"), "not JSON at line 2 column 11: invalid literal");
  EXPECT_EQ(parse_error(""), "not JSON at line 1 column 1: it is empty");
  EXPECT_EQ(parse_error(" "), "not JSON at line 1 column 2: unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(parse_error("[1]x"), "not JSON at line 1 column 4: invalid literal; expected end of input");
  EXPECT_LT(parse_error('"' + std::string(1U << 20, 'x')).size(), 200U);
  EXPECT_EQ(parse_error("[1e999]"), "JSON has a number out of range");
  for (const char* text : {"{", "}", "[", "]", "\"", "\"\\", "{\"a\"", "{\"a\":", "[1,", "nul", "\xFF", "\"\xC3\"",
                           "1 2", "{\"a\":1,}", "'a'", "NaN", "\xEF\xBB\xBF"}) {
    EXPECT_NE(parse_error(text), "") << text;
    EXPECT_EQ(parse_error(text).find('\n'), std::string::npos);
    EXPECT_TRUE(is_utf8(parse_error(text)));
  }
}

TEST(Json, DamagedTextIsReadOrRejected) {
  const std::string complete_text =
      R"({"id":1,"job":[{"id":2,"script":"a\u00e9\"b","env_vars":{"A":"1"},"timeout":5}],"flow":{"nodes":[{}]},"logs":[]})";
  std::mt19937 random(7);
  std::size_t accepted_count = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = complete_text;
    for (std::size_t changes = random() % 4; changes > 0; --changes) {
      const std::size_t position = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[position] = static_cast<char>(random());
          break;
        case 1:
          text.erase(position, random() % 5);
          break;
        default:
          text.insert(position, text.substr(random() % text.size(), random() % 9));
          break;
      }
    }
    const auto parsed = parse_json(text);
    if (!parsed) {
      EXPECT_TRUE(is_utf8(parsed.error().message) && parsed.error().message.size() < 300) << parsed.error().message;
      continue;
    }
    ++accepted_count;
    const auto message = decode_json<Message>(*parsed);
    EXPECT_EQ(decode<Message>(encode(message.record)).problems.size(), 0U) << text;
  }
  EXPECT_GT(accepted_count, 200U);
}

TEST(Json, IntegersBeyond64BitsAreLocated) {
  for (const char* text : {"18446744073709551615", "-9223372036854775808", "[0,-1,1e300,1.8446744073709551616e19]",
                           "\"18446744073709551616\"", R"({"18446744073709551616":"\\\"18446744073709551616"})", "\"",
                           "\"\\", "0.18446744073709551616", ""}) {
    EXPECT_EQ(find_integer_beyond_64_bits(text), "") << text;
  }
  EXPECT_EQ(find_integer_beyond_64_bits("18446744073709551616"), "18446744073709551616");
  EXPECT_EQ(find_integer_beyond_64_bits(R"({"a\"":[1,-9223372036854775809]})"), "-9223372036854775809");
  const auto rejected = parse_exact_json(R"({"v":18446744073709551616})");
  ASSERT_FALSE(rejected);
  EXPECT_EQ(rejected.error().message, "the integer 18446744073709551616 does not fit 64 bits: quote it as text");
  EXPECT_EQ(parse_exact_json("[18446744073709551615]").value(), nlohmann::json({18446744073709551615U}));
}

TEST(Json, DumpNeverThrows) {
  EXPECT_EQ(dump_json(nlohmann::json("a\xFF")), "\"a\xEF\xBF\xBD\"");
  EXPECT_EQ(dump_json(nlohmann::json{{"b", 1}, {"a", 2}}), R"({"a":2,"b":1})");
}

TEST(Utf8, IsCutBetweenCharacters) {
  EXPECT_EQ(whole_characters("abc", 3), "abc");
  EXPECT_EQ(whole_characters("abc", 2), "ab");
  EXPECT_EQ(whole_characters("a\xE2\x82\xACz", 4), "a\xE2\x82\xAC");
  for (std::size_t max : {1, 2, 3}) EXPECT_EQ(whole_characters("a\xE2\x82\xACz", max), "a");
  EXPECT_EQ(whole_characters("\xF0\x9F\x98\x80", 3), "");
  EXPECT_EQ(whole_characters(std::string(9, '\x80'), 8).size(), 5U)
      << "bytes that are not UTF-8 are cut at any position";
}

TEST(Utf8, IncompleteCharacterAtTheEndIsFound) {
  EXPECT_EQ(complete_characters("a\xE2\x82\xAC"), "a\xE2\x82\xAC");
  EXPECT_EQ(complete_characters("a\xE2\x82"), "a");
  EXPECT_EQ(complete_characters("a\xF0\x9F\x98"), "a");
  EXPECT_EQ(complete_characters("\xC3"), "");
  for (const std::string no_character : {"\xFF", "\xC1", "\x80\x80\x80\x80", "a\x80"})
    EXPECT_EQ(complete_characters(no_character), no_character);
  EXPECT_EQ(character_boundary("a\xE2\x82\xACz", 1), 1U);
  for (std::size_t at : {2, 3, 4}) EXPECT_EQ(character_boundary("a\xE2\x82\xACz", at), 4U);
  EXPECT_EQ(character_boundary(std::string(9, '\x80'), 2), 5U) << "bytes that are not UTF-8 are cut at any position";
}

TEST(Utf8, ByteOrderMarkIsRemovedOnce) {
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBF\xEF\xBB\xBFx"), "\xEF\xBB\xBFx");
  EXPECT_EQ(without_byte_order_mark("x\xEF\xBB\xBF"), "x\xEF\xBB\xBF");
}

TEST(Utf8, FollowsRfc3629) {
  for (const char* valid : {"", "abc", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                            "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(valid)) << valid;
    EXPECT_EQ(to_utf8(valid), valid);
  }
  for (const char* invalid : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
                              "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_FALSE(is_utf8(invalid));
    EXPECT_TRUE(is_utf8(to_utf8(invalid)));
  }
  EXPECT_EQ(to_utf8("a\xFF\xC3z"), "a\xEF\xBF\xBD\xEF\xBF\xBDz");
}

}  // namespace
}  // namespace mycojobs
