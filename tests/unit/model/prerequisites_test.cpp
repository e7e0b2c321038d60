#include "model/prerequisite.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

using Kind = Condition::Kind;
using AllowList = std::vector<std::string>;

// Returns the error of the condition, or "" if it is valid.
std::string get_problem(const std::string& text, const AllowList& allowed = {}) {
  const auto condition = parse_condition(text, allowed);
  return condition ? "" : condition.error().message;
}

TEST(Prerequisites, TimesAreRead) {
  EXPECT_EQ(parse_condition("wait:30s", {})->time_ms, 30'000U);
  EXPECT_EQ(parse_condition("wait:0ms", {})->time_ms, 0U);
  const std::pair<const char*, std::uint64_t> times[] = {
      {"at:1970-01-01T00:00:00Z", 0},
      {"at:2026-11-21T10:00:00Z", 1795255200000},
      {"at:2026-11-21t10:00:00.5z", 1795255200500},
      {"at:2026-11-21T10:00:00.123456Z", 1795255200123},
      {"at:2026-11-21T12:30:00+02:30", 1795255200000},
      {"at:2026-11-21T09:00:00-01:00", 1795255200000},
      {"at:2024-02-29T00:00:00Z", 1709164800000},
  };
  for (const auto& [text, time_ms] : times) {
    const auto condition = parse_condition(text, {});
    ASSERT_TRUE(condition) << condition.error().message;
    EXPECT_EQ(condition->time_ms, time_ms) << text;
    EXPECT_EQ(condition->kind, Kind::at);
  }
  for (const char* text : {"at:", "at:tomorrow", "at:2026-11-21", "at:2026-11-21T10:00:00", "at:2026-11-21 10:00:00Z",
                           "at:2026-02-29T00:00:00Z", "at:2026-06-31T00:00:00Z", "at:2026-13-01T00:00:00Z",
                           "at:2026-11-21T24:00:00Z", "at:2026-11-21T10:00:00.Z", "at:2026-11-21T10:00:00+2:00",
                           "at:2026-11-21T10:00:00Zz", "at:1969-12-31T23:59:59Z", "at:1970-01-01T00:00:00+01:00",
                           "at:+026-11-21T10:00:00Z", "at:2026-+1-21T10:00:00Z"}) {
    EXPECT_NE(get_problem(text).find("use a time such as at:2026-11-21T10:00:00Z"), std::string::npos) << text;
  }
  EXPECT_EQ(get_problem("wait:30"),
            "prerequisite \"wait:30\": 30 has no unit: write 30s for seconds (units: ms, s, m, h, d)");
}

TEST(Prerequisites, UnknownConditionIsImpossible) {
  for (const char* text : {"", "nonsense", "wait", "WAIT:1s", "ftp://host/", "https:/host", "exec:/bin/true"}) {
    EXPECT_NE(get_problem(text, {"file:", "tcp:", "http:"}).find("has an unknown kind"), std::string::npos) << text;
  }
  EXPECT_EQ(get_problem("redis:"), "prerequisite \"redis:\": names no key");
  EXPECT_EQ(get_problem("approval:"), "prerequisite \"approval:\": names nothing");
  EXPECT_EQ(parse_condition("approval:legal", {})->kind, Kind::approval);
  EXPECT_EQ(parse_condition("flow:12", {})->kind, Kind::flow);
}

TEST(Prerequisites, InternalKeysAreNotForJobs) {
  EXPECT_EQ(parse_condition("redis:ready:12", {})->target, "ready:12");
  EXPECT_NE(get_problem("redis:mj:claim:job:1:1").find("are not for jobs"), std::string::npos);
  EXPECT_EQ(get_problem("redis:mjx"), "");
}

TEST(Prerequisites, ExternalConditionsNeedPermission) {
  for (const char* text : {"file:/data/x", "tcp:db:5432", "http://host/", "https://host/"}) {
    EXPECT_NE(get_problem(text).find("prerequisites.allow"), std::string::npos) << text;
    EXPECT_EQ(get_problem(text, {"file:", "tcp:", "http:", "https:"}), "") << text;
  }
}

TEST(Prerequisites, PathsAreComparedInTheirNormalForm) {
  const AllowList data_folder{"file:/data/"};
  EXPECT_EQ(parse_condition("file:/data//a/./b", data_folder)->target, "/data/a/b");
  EXPECT_EQ(parse_condition("file:/data/a/../b", data_folder)->target, "/data/b");
  for (const char* text : {"file:/data/../etc/shadow", "file:/data/..", "file:/data/a/../../etc", "file:/database",
                           "file://../etc/passwd", "file:/data"}) {
    EXPECT_NE(get_problem(text, data_folder).find("prerequisites.allow"), std::string::npos) << text;
  }
  for (const char* text : {"file:", "file:data/x", "file:../data/x"}) {
    EXPECT_NE(get_problem(text, data_folder).find("write the whole path"), std::string::npos) << text;
  }
  EXPECT_NE(get_problem(std::string("file:/data/a\0b", 14), data_folder), "");
}

TEST(Prerequisites, PrefixesEndAtNameBoundaries) {
  const AllowList entries{"tcp:db.internal:5432", "file:/srv/flag", "https://status.example.com",
                          "http://10.0.0.7:80/api"};
  for (const char* text : {"tcp:db.internal:5432", "file:/srv/flag", "file:/srv/flag/x", "https://status.example.com",
                           "https://status.example.com/a?b", "https://status.example.com?x", "http://10.0.0.7:80/api",
                           "http://10.0.0.7:80/api/x", "http://10.0.0.7:80/api?x"}) {
    EXPECT_EQ(get_problem(text, entries), "") << text;
  }
  for (const char* text :
       {"tcp:db.internal:54321", "tcp:db.internal.evil:5432", "file:/srv/flags", "https://status.example.com.evil/",
        "https://status.example.community/", "http://status.example.com/", "http://10.0.0.7:8080/api",
        "http://10.0.0.7:80/apis", "http://10.0.0.70:80/api"}) {
    EXPECT_NE(get_problem(text, entries).find("prerequisites.allow"), std::string::npos) << text;
  }
  EXPECT_EQ(get_problem("tcp:db.internal:9", {"tcp:db.internal:"}), "");
}

TEST(Prerequisites, ComparedAndConnectedAddressesAreEqual) {
  const AllowList any_address{"tcp:", "http:", "https:"};
  for (const char* text : {"tcp:host", "tcp::80", "tcp:host:", "tcp:host:0", "tcp:host:65536", "tcp:host:http",
                           "tcp:a@b:80", "tcp:a/b:80", "tcp:a b:80", "tcp:a:1:80", "tcp:[::1]", "tcp:[evil]:80"}) {
    EXPECT_NE(get_problem(text, any_address).find("write host and port"), std::string::npos) << text;
  }
  EXPECT_EQ(get_problem("tcp:[::1]:80", any_address), "");
  for (const char* text :
       {"http://", "http:///x", "http://user@host/", "http://user:secret@host/", "http://good\\@evil/",
        "http://host/a b", "http://host/a/../b", "http://host/..", "http://host/a/%2e%2E/b", "http://host/%2e./b",
        "http://host/./b", "http://host/\xc3\xa9", "http://host/\n"}) {
    EXPECT_NE(get_problem(text, any_address), "") << text;
  }
  EXPECT_NE(get_problem("http://" + std::string(3000, 'a'), any_address).find("longer than 2048"), std::string::npos);
  EXPECT_EQ(get_problem("http://host/a..b/%20?next=../x#../", any_address), "");
}

TEST(Prerequisites, EmptyEntryIsAConfigurationError) {
  EXPECT_TRUE(check_allow_list({}));
  EXPECT_EQ(check_allow_list({"tcp:", "file:", "tcp:"}).error().message, "prerequisites.allow: names \"tcp:\" twice");
  EXPECT_TRUE(
      check_allow_list({"file:", "file:/", "file:/data/", "file:/srv/flag", "tcp:", "http:", "http://", "https://h"}));
  for (const char* entry :
       {"/data/", "data", "wait:", "redis:x", "file:data/", "file:/data/../etc/", "file:/data//x", "ftp://host", "*"}) {
    const auto check_result = check_allow_list({"tcp:", entry});
    ASSERT_FALSE(check_result) << entry;
    EXPECT_TRUE(check_result.error().message.starts_with("prerequisites.allow: ")) << check_result.error().message;
  }
}

}  // namespace
}  // namespace mycojobs
