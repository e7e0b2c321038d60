#include "text/timestamp.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <ctime>

namespace mycojobs {
namespace {

TEST(ParseTime, ReadsZonesAndOptionalSeconds) {
  constexpr std::uint64_t kNoon = 1'896'091'200'000;  // 2030-01-31T12:00:00Z
  for (const char* text : {"2030-01-31T12:00:00Z", "2030-01-31T12:00Z", "2030-01-31 12:00:00Z", "2030-01-31 12:00 Z",
                           "2030-01-31T14:00:00+02:00", "2030-01-31 06:30 -0530"}) {
    auto time_ms = parse_time_ms(text);
    ASSERT_TRUE(time_ms) << text << ": " << time_ms.error().message;
    EXPECT_EQ(*time_ms, kNoon) << text;
  }
}

TEST(ParseTime, WithoutAZoneIsLocalTime) {
  std::tm local_time{};
  local_time.tm_year = 130, local_time.tm_mday = 31, local_time.tm_hour = 12, local_time.tm_isdst = -1;
  auto time_ms = parse_time_ms("2030-01-31 12:00");
  ASSERT_TRUE(time_ms);
  EXPECT_EQ(*time_ms, static_cast<std::uint64_t>(std::mktime(&local_time)) * 1000);
}

TEST(ParseTime, RejectsInvalidTimes) {
  for (const char* text : {"", "tomorrow", "2030-02-30T12:00:00Z", "2030-13-01T00:00:00Z", "2030-01-31", "12:00",
                           "2030-01-31T12:00:00Zulu", "2030-01-31T25:00:00Z", "1960-01-01T00:00:00Z"}) {
    EXPECT_FALSE(parse_time_ms(text)) << text;
  }
  EXPECT_NE(parse_time_ms("soon").error().message.find("2030-01-31T12:00:00Z"), std::string::npos);
}

TEST(FormatTime, UtcTimeHasMilliseconds) {
  EXPECT_EQ(format_utc_time_ms(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(format_utc_time_ms(1796050753069), "2026-11-30T14:59:13.069Z");
  EXPECT_EQ(format_utc_time_ms(UINT64_MAX).substr(0, 20), "9999-12-31T23:59:59.");
}

}  // namespace
}  // namespace mycojobs
