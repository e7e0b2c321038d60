// JSON that is written and parsed without the library must equal the library's result: byte for byte and value for
// value.
#include "text/json.h"
#include "text/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "model/records.h"
#include "text/json_reader.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kDepth = 64;

// Pieces of hostile strings: escaped characters, text that looks like an escape, invalid and incomplete UTF-8.
const std::vector<std::string> kPieces = {"a",
                                          "\"",
                                          "\\",
                                          "/",
                                          "\\u0041",
                                          "\n",
                                          "\t",
                                          "\r",
                                          "\b",
                                          "\f",
                                          "\x01",
                                          "\x1F",
                                          "\x7F",
                                          "\xC3\xA9",
                                          "\xC3",
                                          "\xA9",
                                          "\xE2\x82\xAC",
                                          "\xE2\x82",
                                          "\xED\xA0",
                                          "\xF0\x9F\x98\x80",
                                          "\xF0\x9F",
                                          "\xFF",
                                          "{",
                                          "]",
                                          ",",
                                          ":",
                                          "</script>",
                                          "\xE2\x80\xA8",
                                          std::string(1, '\0'),
                                          "0123456789abcdef"};

class HostileText {
 public:
  explicit HostileText(unsigned seed) : random_(seed) {}
  std::size_t choose_below(std::size_t n) { return random_() % n; }
  std::string make_text(std::size_t max_pieces = 12) {
    std::string output;
    for (std::size_t n = choose_below(max_pieces); n > 0; --n) output += kPieces[choose_below(kPieces.size())];
    return output;
  }

 private:
  std::mt19937 random_;
};

std::string write_json(std::string_view text) {
  std::string output;
  append_json(output, text);
  return output;
}

TEST(JsonText, EveryByteIsWrittenLikeTheLibrary) {
  for (int byte = 0; byte < 256; ++byte) {
    for (const char* context : {"", "a", "\xC3", "\xE2\x82", "12345678"}) {
      const std::string text = context + std::string(1, static_cast<char>(byte)) + context;
      EXPECT_EQ(write_json(text), dump_json(json(text))) << byte;
    }
  }
}

TEST(JsonText, HostileStringsAreWrittenLikeTheLibrary) {
  HostileText generator(11);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = generator.make_text();
    ASSERT_EQ(write_json(text), dump_json(json(text))) << write_json(text);
    ASSERT_TRUE(is_utf8(write_json(text)));
  }
}

TEST(JsonText, ObjectsListsAndMapsAreWrittenLikeTheLibrary) {
  HostileText generator(12);
  for (int round = 0; round < 3000; ++round) {
    TextMap map;
    std::vector<std::string> list;
    for (std::size_t n = generator.choose_below(5); n > 0; --n)
      map[generator.make_text()] = generator.make_text(), list.push_back(generator.make_text());
    std::string output;
    JsonObject object(output);
    object.add("a", map);
    object.add("b", list);
    object.add("c", std::vector<std::uint32_t>{0, UINT32_MAX});
    object.add("d", INT64_MIN);
    object.add("e", UINT64_MAX);
    object.add("f", true);
    object.add("g", false);
    object.add("h", "text");
    JsonObject(object.append_member("i")).end();
    object.end();
    const json expected{{"a", map},  {"b", list},  {"c", {0, UINT32_MAX}}, {"d", INT64_MIN},     {"e", UINT64_MAX},
                        {"f", true}, {"g", false}, {"h", "text"},          {"i", json::object()}};
    ASSERT_EQ(output, dump_json(expected));
  }
  std::string output;
  append_json(output, TextMap());
  append_json(output, std::vector<std::string>());
  EXPECT_EQ(output, "{}[]");
}

// If the own parser accepts the text, the library must accept it with the same value. The library decides on all other
// texts.
void expect_like_the_library(const std::string& text) {
  json parsed;
  if (!read_json_text(text, kDepth, parsed)) return;
  const json reference = json::parse(text, nullptr, false);
  ASSERT_FALSE(reference.is_discarded()) << text;
  ASSERT_EQ(parsed, reference) << text;
  ASSERT_EQ(dump_json(parsed), dump_json(reference)) << text;
}

bool is_accepted(std::string_view text) {
  json value;
  return read_json_text(text, kDepth, value);
}

TEST(JsonReader, ValidTextIsReadWithoutTheLibrary) {
  for (const char* text :
       {"null", " [ ] ", "{}", "[1,-1,0,-0,0.5,-0.0,1e3,1E-3,1.25e+2,18446744073709551615,-9223372036854775808]",
        "\"\"", R"({"a":{"b":[true,false,null,"x"]},"":"", "\u0041":"\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00"})"}) {
    EXPECT_TRUE(is_accepted(text)) << text;
    expect_like_the_library(text);
  }
}

TEST(JsonReader, InvalidJsonIsRejected) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "[1,]",
                           "[,1]",
                           "[1 2]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{1:2}",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "-",
                           "1e",
                           "1e+",
                           "tru",
                           "nulls",
                           "\"",
                           "\"\\\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\ud800\\u0041\"",
                           "\"\\udc00\"",
                           "\"\\u+123\"",
                           "\"\n\"",
                           "\"\xFF\"",
                           "\"\xC3\"",
                           "1e999",
                           "nan",
                           "'a'",
                           "[1]x",
                           R"({"a":1,"a":2})",
                           R"({"a":1,"\u0061":2})"}) {
    EXPECT_FALSE(is_accepted(text)) << text;
  }
  EXPECT_TRUE(is_accepted(std::string(kDepth, '[') + std::string(kDepth, ']')));
  EXPECT_FALSE(is_accepted(std::string(kDepth + 1, '[') + std::string(kDepth + 1, ']')));
  EXPECT_FALSE(is_accepted(std::string(1U << 20, '[')));
}

TEST(JsonReader, DamagedTextIsReadLikeTheLibraryOrRejected) {
  const std::string complete_text =
      R"({"id":1,"job":[{"id":-2,"script":"a\u00e9\"b\ud83d\ude00","env_vars":{"A":"1"},"t":5.25e-3}],"n":null,"b":[true,false]})";
  HostileText generator(13);
  std::size_t accepted_count = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = complete_text;
    for (std::size_t changes = generator.choose_below(3); changes > 0; --changes) {
      const std::size_t position = generator.choose_below(text.size());
      if (generator.choose_below(3) == 0)
        text[position] = static_cast<char>(generator.choose_below(256));
      else if (generator.choose_below(2) == 0)
        text.erase(position, generator.choose_below(5));
      else
        text.insert(position, generator.choose_below(2) == 0
                                  ? generator.make_text(4)
                                  : text.substr(generator.choose_below(text.size()), generator.choose_below(9)));
    }
    accepted_count += is_accepted(text) ? 1 : 0;
    expect_like_the_library(text);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted_count, 5000U);
}

TEST(JsonReader, NumbersMatchTheLibraryToTheLastBit) {
  std::mt19937_64 random(14);
  for (int round = 0; round < 20000; ++round) {
    const double value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 400) - 200);
    expect_like_the_library(dump_json(json(value)));
    std::string digits = std::to_string(random());
    digits.insert(1 + random() % (digits.size() - 1), ".");
    expect_like_the_library((random() % 2 == 0 ? "-" : "") + digits + "e" +
                            std::to_string(static_cast<int>(random() % 640) - 320));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace mycojobs
