// Uses the test vectors of RFC 8949, appendix A, that are deterministic encodings of JSON values.
#include "text/cbor.h"
#include "base/parse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <tuple>
#include <utility>

namespace mycojobs {
namespace {

using nlohmann::json;

std::string decode_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}
std::string encode_hex(const json& value) {
  const auto bytes = encode_cbor(value);
  return bytes ? to_hex(*bytes) : bytes.error().message;
}

TEST(Cbor, EncodesAndDecodesTheStandardVectors) {
  const std::pair<const char*, json> vectors[] = {
      {"00", 0},
      {"17", 23},
      {"01", 1},
      {"0a", 10},
      {"1818", 24},
      {"1819", 25},
      {"1864", 100},
      {"1903e8", 1000},
      {"1a000f4240", 1000000},
      {"1b000000e8d4a51000", 1000000000000},
      {"1bffffffffffffffff", 18446744073709551615U},
      {"20", -1},
      {"29", -10},
      {"3863", -100},
      {"3903e7", -1000},
      {"3b7fffffffffffffff", std::numeric_limits<std::int64_t>::min()},
      {"f90000", 0.0},
      {"f98000", -0.0},
      {"f93c00", 1.0},
      {"fb3ff199999999999a", 1.1},
      {"f93e00", 1.5},
      {"f97bff", 65504.0},
      {"fa47c35000", 100000.0},
      {"fa7f7fffff", 3.4028234663852886e+38},
      {"fb7e37e43c8800759c", 1.0e+300},
      {"f90001", 5.960464477539063e-8},
      {"f90400", 0.00006103515625},
      {"f9c400", -4.0},
      {"fbc010666666666666", -4.1},
      {"f97c00", std::numeric_limits<double>::infinity()},
      {"f9fc00", -std::numeric_limits<double>::infinity()},
      {"f4", false},
      {"f5", true},
      {"f6", nullptr},
      {"40", json::binary({})},
      {"4401020304", json::binary({1, 2, 3, 4})},
      {"60", ""},
      {"6449455446", "IETF"},
      {"6161", "a"},
      {"62225c", "\"\\"},
      {"62c3bc", "\u00fc"},
      {"63e6b0b4", "\u6c34"},
      {"64f0908591", "\U00010151"},
      {"80", json::array()},
      {"8301820203820405", json::parse("[1,[2,3],[4,5]]")},
      {"826161a161626163", json::parse(R"(["a",{"b":"c"}])")},
      {"a56161614161626142616361436164614461656145", json::parse(R"({"a":"A","b":"B","c":"C","d":"D","e":"E"})")},
      {"83010203", {1, 2, 3}},
      {"98190102030405060708090a0b0c0d0e0f101112131415161718181819",
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}},
      {"a0", json::object()},
      {"a26161016162820203", {{"a", 1}, {"b", {2, 3}}}},
  };
  for (const auto& [hex, value] : vectors) {
    EXPECT_EQ(encode_hex(value), hex);
    const auto decoded = decode_cbor(decode_hex(hex));
    ASSERT_TRUE(decoded) << hex << ": " << decoded.error().message;
    EXPECT_EQ(*decoded, value) << hex;
    EXPECT_EQ(decoded->type() == json::value_t::number_float, value.is_number_float()) << hex;
    EXPECT_EQ(encode_hex(*decoded), hex);
  }
  EXPECT_EQ(encode_hex(std::numeric_limits<double>::quiet_NaN()), "f97e00");
  EXPECT_EQ(encode_hex(-std::numeric_limits<double>::quiet_NaN()), "f97e00");
  EXPECT_TRUE(std::isnan(decode_cbor(decode_hex("f97e00"))->get<double>()));
}

// Vectors of the appendix that encode a value in another way, or a value that JSON lacks.
TEST(Cbor, RejectsNonDeterministicAndNonJsonVectors) {
  for (const char* hex : {"c249010000000000000000",
                          "3bffffffffffffffff",
                          "c349010000000000000000",
                          "f7",
                          "f0",
                          "f8ff",
                          "fa7f800000",
                          "fa7fc00000",
                          "faff800000",
                          "fb7ff0000000000000",
                          "fb7ff8000000000000",
                          "fbfff0000000000000",
                          "c074323031332d30332d32315432303a30343a30305a",
                          "c11a514b67b0",
                          "c1fb41d452d9e8200000",
                          "d74401020304",
                          "d818456449455446",
                          "a201020304",
                          "5f42010243030405ff",
                          "7f657374726561646d696e67ff",
                          "9fff",
                          "9f018202039f0405ffff",
                          "9f01820203820405ff",
                          "83018202039f0405ff",
                          "83019f0203ff820405",
                          "bf61610161629f0203ffff",
                          "826161bf61626163ff",
                          "bf6346756ef563416d7421ff"}) {
    EXPECT_FALSE(decode_cbor(decode_hex(hex))) << hex;
  }
  EXPECT_EQ(encode_hex(std::numeric_limits<double>::quiet_NaN()), "f97e00");
}

TEST(Cbor, SortsKeysByTheirBytes) {
  EXPECT_EQ(encode_hex({{"aa", 1}, {"b", 2}}),
            "a2616202626161"
            "01")
      << "the shorter key comes first";
  json reversed_object = json::object();
  reversed_object["b"] = 2;
  reversed_object["aa"] = 1;
  EXPECT_EQ(encode_hex(reversed_object), encode_hex({{"aa", 1}, {"b", 2}}));
}

TEST(Cbor, AcceptsOnlyTheCanonicalEncoding) {
  const std::pair<const char*, const char*> invalid_encodings[] = {
      {"", "ends early"},
      {"1800", "more bytes than it needs"},
      {"1817", "more bytes than it needs"},
      {"1900ff", "more bytes than it needs"},
      {"1a0000ffff", "more bytes than it needs"},
      {"1b00000000ffffffff", "more bytes than it needs"},
      {"580101", "more bytes than it needs"},
      {"fa3f800000", "more bytes than it needs"},
      {"fb3ff0000000000000", "more bytes than it needs"},
      {"f97e01", "more bytes than it needs"},
      {"fa7fc00000", "more bytes than it needs"},
      {"3bffffffffffffffff", "below -2^63"},
      {"5f42010243030405ff", "not given in front"},
      {"9fff", "not given in front"},
      {"bfff", "not given in front"},
      {"ff", "not given in front"},
      {"1c", "not given in front"},
      {"c074323031332d30332d32315432303a30343a30305a", "a tag"},
      {"f7", "simple value"},
      {"f818", "simple value"},
      {"a2616201616102", "order"},
      {"a2616101616102", "twice"},
      {"a10101", "no text"},
      {"62c328", "not UTF-8"},
      {"0000", "follows"},
      {"6261", "ends early"},
      {"8201", "ends early"},
      {"a16161", "ends early"},
      {"9b7fffffffffffffff", "ends early"},
      {"bb7fffffffffffffff", "ends early"},
      {"7b7fffffffffffffff", "ends early"},
  };
  for (const auto& [hex, problem] : invalid_encodings) {
    const auto decoded = decode_cbor(decode_hex(hex));
    ASSERT_FALSE(decoded) << hex;
    EXPECT_EQ(decoded.error().code, Code::invalid);
    EXPECT_NE(decoded.error().message.find(problem), std::string::npos) << hex << ": " << decoded.error().message;
  }
}

// Regression test for a bug found by fuzzing: the last three bytes are the valid encoding of the value.
TEST(Cbor, FloatIsComparedFromItsFirstByte) {
  EXPECT_FALSE(decode_cbor("\xfa\x7f\xf9\x7e" + std::string(1, '\0')));
  EXPECT_TRUE(decode_cbor("\xf9\x7e" + std::string(1, '\0')));
}

TEST(Cbor, IsBoundedInDepthValuesAndBytes) {
  const std::string nested_arrays(kMaxCborDepth + 1, '\x81');
  EXPECT_EQ(decode_cbor(nested_arrays + '\x01').error().code, Code::invalid);
  EXPECT_TRUE(decode_cbor(nested_arrays.substr(1) + '\x01'));
  EXPECT_FALSE(decode_cbor(std::string(1U << 20, '\x81'))) << "the nesting must not overflow the stack";
  json nested_value = 1;
  for (std::size_t i = 0; i <= kMaxCborDepth; ++i) nested_value = json::array({nested_value});
  EXPECT_FALSE(encode_cbor(nested_value));
  EXPECT_EQ(decode_cbor("\x83\x01\x02\x03", {.values = 3}).error().code, Code::too_large);
  EXPECT_TRUE(decode_cbor("\x83\x01\x02\x03", {.values = 4}));
  EXPECT_EQ(decode_cbor("\x83\x01\x02\x03", {.bytes = 3}).error().code, Code::too_large);
}

TEST(Cbor, RejectsTextThatIsNotUtf8) {
  EXPECT_FALSE(encode_cbor("\xff"));
  EXPECT_FALSE(encode_cbor({{"\xff", 1}}));
  EXPECT_FALSE(encode_cbor(json::binary({1}, 2)));
}

// Decoding arbitrary bytes either fails or returns a value whose only encoding is these bytes.
TEST(Cbor, RandomBytesAreRejectedOrRoundTrip) {
  std::mt19937_64 random(20261123);
  std::size_t accepted_count = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string bytes(1 + random() % 24, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 3 == 0 ? random() % 256 : random() % 8 << 5 | random() % 6);
    const auto value = decode_cbor(bytes);
    if (!value) continue;
    ++accepted_count;
    ASSERT_EQ(encode_hex(*value), to_hex(bytes)) << *value;
  }
  EXPECT_GT(accepted_count, 1000U) << "otherwise the test proves nothing";
}

}  // namespace
}  // namespace mycojobs
