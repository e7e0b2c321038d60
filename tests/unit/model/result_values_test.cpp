// Results keep their original type, for any content of the record.
#include "model/result_values.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace mycojobs::test {
namespace {

using nlohmann::json;

TEST(ResultValues, RoundTrip) {
  const json object = {{"n", 1}, {"text", "1"}, {"list", {1, nullptr}}, {"none", nullptr}, {"no", false}, {"d", 1.5}};
  const ResultValues values = parse_result_values(object);
  EXPECT_EQ(values.texts.at("n"), "1");
  EXPECT_EQ(values.texts.at("list"), "[1,null]");
  EXPECT_EQ(to_typed_json(values.texts, values.json), object);
  EXPECT_EQ(json::parse(to_typed_json_text(values.texts, values.json)), object);
}

TEST(ResultValues, NoDigitIsLostOnTheWayToAJob) {
  EXPECT_EQ(to_typed_json_text({{"n", "1180591620717411303424"}, {"f", "0.10"}}, {"n", "f"}),
            R"({"f":0.10,"n":1180591620717411303424})");
}

TEST(ResultValues, IntegersBeyond64BitsAreTextInTheTree) {
  const TextMap texts = {
      {"large", "18446744073709551617"}, {"list", "[-9223372036854775809]"}, {"max", "18446744073709551615"}};
  EXPECT_EQ(
      to_typed_json(texts, {"large", "list", "max"}),
      json({{"large", "18446744073709551617"}, {"list", "[-9223372036854775809]"}, {"max", 18446744073709551615U}}));
}

TEST(ResultValues, ForeignValuesAreHarmless) {
  EXPECT_EQ(
      to_typed_json_text({{"a", "1,\"b\":2"}, {"c", std::string(100, '[')}, {"d", "nan"}}, {"a", "c", "d", "gone"}),
      R"({"a":"1,\"b\":2","c":")" + std::string(100, '[') + R"(","d":"nan"})");
  EXPECT_EQ(to_typed_json({{"a", "}"}}, {"a"}), json({{"a", "}"}}));
  EXPECT_EQ(parse_result_values(json::array({1})), ResultValues());
}

}  // namespace
}  // namespace mycojobs::test
