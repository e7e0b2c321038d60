#include "text/units.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

std::string get_error(const Result<std::uint64_t>& result) { return result ? "" : result.error().message; }

TEST(Duration, HasAUnit) {
  EXPECT_EQ(parse_duration_ms("500ms"), 500U);
  EXPECT_EQ(parse_duration_ms("30s"), 30'000U);
  EXPECT_EQ(parse_duration_ms("5m"), 300'000U);
  EXPECT_EQ(parse_duration_ms("2h"), 7'200'000U);
  EXPECT_EQ(parse_duration_ms("1d"), 86'400'000U);
  EXPECT_EQ(parse_duration_ms("0s"), 0U);
  EXPECT_EQ(get_error(parse_duration_ms("30")), "30 has no unit: write 30s for seconds (units: ms, s, m, h, d)");
  EXPECT_EQ(get_error(parse_duration_ms("soon")),
            "\"soon\" is not a duration: write a whole number and a unit, such as 500ms, 30s, 5m, 2h or 1d");
  for (const char* invalid : {"", "s", "-1s", "1.5s", "1 s", " 1s", "1S", "1h30m", "1e3s", "+1s", "0x1s"}) {
    EXPECT_FALSE(parse_duration_ms(invalid)) << invalid;
  }
}

TEST(Duration, DoesNotWrapAround) {
  EXPECT_EQ(parse_duration_ms("18446744073709551615ms"), 18446744073709551615U);
  EXPECT_EQ(get_error(parse_duration_ms("18446744073709551616ms")), "\"18446744073709551616ms\" is too large");
  EXPECT_EQ(get_error(parse_duration_ms("18446744073709552s")), "\"18446744073709552s\" is too large");
}

TEST(Size, IsBytesOrHasABinaryUnit) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("1048576"), 1U << 20);
  EXPECT_EQ(parse_bytes("64KiB"), 64U << 10);
  EXPECT_EQ(parse_bytes("256MiB"), 256U << 20);
  EXPECT_EQ(parse_bytes("1GiB"), 1U << 30);
  EXPECT_EQ(get_error(parse_bytes("256MB")),
            "\"256MB\" is not a size: write bytes, or a whole number with KiB, MiB or GiB, such as 256MiB");
  for (const char* invalid : {"", "MiB", "-1", "1.5GiB", "1 GiB", "1gib", "1K", "1M"})
    EXPECT_FALSE(parse_bytes(invalid)) << invalid;
  EXPECT_EQ(get_error(parse_bytes("18446744073709551615KiB")), "\"18446744073709551615KiB\" is too large");
}

TEST(Units, SecondsAreNotRounded) {
  EXPECT_EQ(parse_duration_s("1s"), 1U);
  EXPECT_EQ(parse_duration_s("2000ms"), 2U);
  EXPECT_EQ(parse_duration_s("49710d"), 4'294'944'000U);
  for (const char* invalid : {"0s", "500ms", "1500ms", "49711d", "5"})
    EXPECT_FALSE(parse_duration_s(invalid)) << invalid;
  EXPECT_EQ(get_error(parse_duration_s("500ms")), "\"500ms\" is not a whole number of seconds: give 1s to 49710d");
}

}  // namespace
}  // namespace mycojobs
