#include <gtest/gtest.h>

#include <ctime>

#include "text/cron.h"

namespace mycojobs {
namespace {

std::uint64_t utc(const char* text) {
  std::tm date{};
  EXPECT_NE(::strptime(text, "%Y-%m-%d %H:%M:%S", &date), nullptr) << text;
  return static_cast<std::uint64_t>(::timegm(&date)) * 1000;
}
std::string to_text(std::uint64_t ms) {
  if (ms == 0) return "never";
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm date{};
  ::gmtime_r(&seconds, &date);
  char out[32];
  std::strftime(out, sizeof out, "%Y-%m-%d %H:%M:%S", &date);
  return out + std::string(ms % 1000 == 0 ? "" : "+");
}

// Returns the next times in UTC, one per line.
std::string moments(const char* text, const char* zone, const char* after, int count) {
  const auto cron = parse_cron(text);
  if (!cron) return cron.error().message;
  std::string out;
  std::uint64_t at = utc(after);
  for (int i = 0; i < count; ++i) {
    const auto next = next_time(*cron, zone, at);
    if (!next) return next.error().message;
    out += (i == 0 ? "" : "\n") + to_text(*next);
    if (*next == 0) break;
    EXPECT_GT(*next, at);
    at = *next;
  }
  return out;
}

TEST(Cron, FiresWhenItsFieldsMatch) {
  EXPECT_EQ(moments("30 3 * * *", "UTC", "2026-11-22 03:29:59", 3),
            "2026-11-22 03:30:00\n2026-11-23 03:30:00\n2026-11-24 03:30:00");
  EXPECT_EQ(moments("30 3 * * *", "UTC", "2026-11-22 03:30:00", 1), "2026-11-23 03:30:00")
      << "the result is after the given time";
  EXPECT_EQ(moments("*/20 9-10 * * mon-fri", "UTC", "2026-11-20 10:30:00", 3),
            "2026-11-20 10:40:00\n2026-11-23 09:00:00\n2026-11-23 09:20:00");
  EXPECT_EQ(moments("0 0 29 2 *", "UTC", "2026-01-01 00:00:00", 2), "2028-02-29 00:00:00\n2032-02-29 00:00:00");
  EXPECT_EQ(moments("0 12 31 * *", "UTC", "2026-01-31 12:00:00", 2), "2026-03-31 12:00:00\n2026-05-31 12:00:00");
  EXPECT_EQ(moments("0 0 1,15 * FRI", "UTC", "2026-11-01 00:00:00", 3),
            "2026-11-06 00:00:00\n2026-11-13 00:00:00\n2026-11-15 00:00:00")
      << "a match of either day is sufficient";
  EXPECT_EQ(moments("0 0 */2 * fri", "UTC", "2026-11-01 00:00:00", 2), "2026-11-13 00:00:00\n2026-11-27 00:00:00")
      << "a day field that starts with * is not a restriction";
  EXPECT_EQ(moments("0 0 * * 7", "UTC", "2026-11-22 00:00:00", 1), "2026-11-29 00:00:00");
  EXPECT_EQ(moments("0 0 * * fri-sun", "UTC", "2026-11-22 00:00:00", 2), "2026-11-27 00:00:00\n2026-11-28 00:00:00");
  EXPECT_EQ(moments("@yearly", "UTC", "2026-11-22 00:00:00", 1), "2027-01-01 00:00:00");
  EXPECT_EQ(moments("\t5  4 1-31/10 feb,dec * ", "UTC", "2026-11-22 00:00:00", 2),
            "2026-12-01 04:05:00\n2026-12-11 04:05:00");
}

TEST(Cron, MillisecondBeforeDoesNotFire) {
  const auto cron = *parse_cron("0 0 * * *");
  EXPECT_EQ(to_text(*next_time(cron, "UTC", utc("2026-11-22 00:00:00") - 1)), "2026-11-22 00:00:00");
  EXPECT_EQ(to_text(*next_time(cron, "UTC", utc("2026-11-22 00:00:00") + 1)), "2026-11-23 00:00:00");
}

TEST(Cron, UsesItsTimeZone) {
  EXPECT_EQ(moments("0 9 * * *", "Asia/Kolkata", "2026-11-22 00:00:00", 1), "2026-11-22 03:30:00");
  EXPECT_EQ(moments("0 9 * * *", "America/New_York", "2026-11-22 00:00:00", 1), "2026-11-22 14:00:00");
}

// Europe/Berlin: 2027-03-28 02:00 -> 03:00 (01:00 UTC); 2026-10-25 03:00 -> 02:00 (01:00 UTC).
TEST(Cron, SkippedTimeFiresAfterTheClockChange) {
  EXPECT_EQ(moments("30 2 * * *", "Europe/Berlin", "2027-03-27 00:00:00", 3),
            "2027-03-27 01:30:00\n2027-03-28 01:00:00\n2027-03-29 00:30:00");
  EXPECT_EQ(moments("0 2,3 * * *", "Europe/Berlin", "2027-03-27 23:30:00", 2),
            "2027-03-28 01:00:00\n2027-03-29 00:00:00")
      << "02:00 and 03:00 are the same time and fire once";
}

TEST(Cron, RepeatedTimeFiresOnce) {
  EXPECT_EQ(moments("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00:00", 2),
            "2026-10-25 00:30:00\n2026-10-26 01:30:00");
  EXPECT_EQ(moments("30 2 * * *", "Europe/Berlin", "2026-10-25 00:30:00", 1), "2026-10-26 01:30:00");
}

TEST(Cron, WildcardFollowsTheClock) {
  EXPECT_EQ(moments("30 * * * *", "Europe/Berlin", "2026-10-25 00:00:00", 3),
            "2026-10-25 00:30:00\n2026-10-25 01:30:00\n2026-10-25 02:30:00");
  EXPECT_EQ(moments("30 * * * *", "Europe/Berlin", "2027-03-28 00:00:00", 2),
            "2027-03-28 00:30:00\n2027-03-28 01:30:00");
  EXPECT_EQ(moments("*/30 2 * * *", "Europe/Berlin", "2027-03-28 00:00:00", 1), "2027-03-29 00:00:00");
}

TEST(Cron, ClockChangesOverMidnightOrAWholeDay) {
  EXPECT_EQ(moments("0 0 * * *", "America/Santiago", "2026-09-05 12:00:00", 2),
            "2026-09-06 04:00:00\n2026-09-07 03:00:00")
      << "midnight does not exist on 6 September";
  EXPECT_EQ(moments("0 12 * * *", "Pacific/Apia", "2011-12-29 00:00:00", 3),
            "2011-12-29 22:00:00\n2011-12-30 10:00:00\n2011-12-30 22:00:00")
      << "30 December 2011 was skipped, so its noon fires at the start of 31 December";
  EXPECT_EQ(moments("0 6 * * *", "Australia/Lord_Howe", "2026-10-03 00:00:00", 2),
            "2026-10-03 19:00:00\n2026-10-04 19:00:00");
}

TEST(Cron, EveryMinuteOfAYearFires) {
  const auto cron = *parse_cron("* * * * *");
  for (const char* day : {"2026-10-24 22:00:00", "2027-03-27 22:00:00", "2026-12-31 20:00:00"}) {
    std::uint64_t at = utc(day);
    for (int i = 0; i < 600; ++i) {
      const std::uint64_t next = *next_time(cron, "Europe/Berlin", at);
      ASSERT_EQ(next, at + 60000) << to_text(at);
      at = next;
    }
  }
}

TEST(Cron, NoMatchWithinTenYearsIsNever) {
  const auto cron = *parse_cron("0 0 29 2 */6");
  EXPECT_EQ(moments("0 0 29 2 */6", "UTC", "2030-01-01 00:00:00", 1), "2032-02-29 00:00:00");
  EXPECT_EQ(*next_time(cron, "UTC", UINT64_MAX), 0U);
  EXPECT_EQ(*next_time(cron, "UTC", utc("9998-12-31 00:00:00") + 365ULL * 86400000), 0U);
}

TEST(Cron, InvalidFieldIsNamed) {
  const auto get_error = [](const char* text) {
    const auto cron = parse_cron(text);
    return cron ? std::string("accepted") : cron.error().message;
  };
  EXPECT_EQ(get_error(""),
            "\"\" has 0 fields, not 5: minute, hour, day of month, month, day of week, as in \"0 3 * * mon-fri\"");
  EXPECT_NE(get_error("0 0 3 * * *").find("(there are no seconds and no years)"), std::string::npos);
  EXPECT_EQ(get_error("60 * * * *"),
            "minute: 60 is out of range; allowed: 0 to 59, lists (1,3), ranges (1-5), steps (*/2, 1-9/2) and *");
  EXPECT_EQ(get_error("* 24 * * *").substr(0, 25), "hour: 24 is out of range;");
  EXPECT_EQ(get_error("* * 0 * *").substr(0, 32), "day of month: 0 is out of range;");
  EXPECT_EQ(get_error("* * * foo *").substr(0, 42), "month: \"foo\" is not a number and no name; ");
  EXPECT_EQ(get_error("* * * * 8").substr(0, 31), "day of week: 8 is out of range;");
  EXPECT_EQ(get_error("*/0 * * * *").substr(0, 59), "minute: \"*/0\" has a step that is not a number from 1 to 59;");
  EXPECT_EQ(get_error("5/10 * * * *").substr(0, 60), "minute: \"5/10\" has a step but no range: write 5-59/10; allow");
  EXPECT_EQ(get_error("10-5 * * * *").substr(0, 50), "minute: 10-5 goes backwards: write two ranges; all");
  for (const char* text : {"1,,2 * * * *", "1-2-3 * * * *", "*/2/2 * * * *", "? * * * *", "-1 * * * *", "1.5 * * * *",
                           "** * * * *", "1- * * * *", "* * L * *", "* * * * 5#3", "@reboot", "@dialy", "* * 30 2 *",
                           "* * 31 4,6,9,11 *", "99999999999999999999 * * * *", "jan * * * *", "0x5 * * * *"}) {
    EXPECT_NE(get_error(text), "accepted") << text;
  }
  EXPECT_NE(get_error("@dialy").find("did you mean \"@daily\"?"), std::string::npos);
  EXPECT_NE(get_error("0 0 31 4 *").find("never occurs"), std::string::npos);
  EXPECT_NE(get_error(std::string(2000, '*').c_str()).find("longer than"), std::string::npos);
}

TEST(Cron, UnknownZonesAreRejected) {
  EXPECT_TRUE(check_zone("Europe/Berlin"));
  EXPECT_TRUE(check_zone("UTC"));
  const auto get_error = [](const char* zone) {
    return check_zone(zone) ? std::string("known") : check_zone(zone).error().message;
  };
  EXPECT_EQ(get_error("Europe/Berln"), "\"Europe/Berln\" is not a known time zone; did you mean \"Europe/Berlin\"?");
  EXPECT_EQ(get_error("Berlin"), "\"Berlin\" is not a known time zone; did you mean \"Europe/Berlin\"?");
  EXPECT_EQ(get_error("europe/berlin"), "\"europe/berlin\" is not a known time zone; did you mean \"Europe/Berlin\"?");
  for (const char* zone :
       {"", "Mars/Olympus", "../../../etc/passwd", "/etc/localtime", "localtime", "posix/UTC", "+01:00"}) {
    EXPECT_NE(get_error(zone), "known") << zone;
  }
  EXPECT_FALSE(next_time(*parse_cron("@daily"), "Mars/Olympus", 0));
}

TEST(Cron, IsDescribedInWords) {
  const auto words = [](const char* text) { return describe(*parse_cron(text)); };
  EXPECT_EQ(words("0 3 * * mon"), "at 03:00 on Monday");
  EXPECT_EQ(words("* * * * *"), "every minute");
  EXPECT_EQ(words("*/5 * * * *"), "every 5 minutes");
  EXPECT_EQ(words("@hourly"), "at minute 0 of every hour");
  EXPECT_EQ(words("*/15 9-17 * * 1-5"), "every 15 minutes of hour 9 to 17 on Monday to Friday");
  EXPECT_EQ(words("0,30 8,20 1 * *"), "at 08:00, 08:30, 20:00, 20:30 on day 1 of the month");
  EXPECT_EQ(words("0 */2 * * *"), "at minute 0 of every 2 hours");
  EXPECT_EQ(words("0 0 1,15 * fri"), "at 00:00 on day 1, 15 of the month or on Friday");
  EXPECT_EQ(
      words("0 0 */2 * fri"),
      "at 00:00 on day 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 of the month, if it is on Friday");
  EXPECT_EQ(words("0 0 1 1,7 *"), "at 00:00 on day 1 of the month in January, July");
}

}  // namespace
}  // namespace mycojobs
