// Addresses with sentinels, and addresses of Redis Cluster, which is not supported.
#include <gmock/gmock.h>

#include "inspect/doctor.h"
#include "store/redis/redis_endpoint.h"
#include "store/redis/redis_sentinel.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SentinelAddress, NamesSentinelsMasterAndDatabase) {
  const auto full = parse_redis_url("redis+sentinel://me:p%40ss@one,two:7000,[::1]:7001,[::2]/my.master-1/3").value();
  const std::vector<RedisAddress> sentinels{{"one", 26379}, {"two", 7000}, {"::1", 7001}, {"::2", 26379}};
  EXPECT_EQ(full.sentinels, sentinels);
  EXPECT_EQ(full.master_name, "my.master-1");
  EXPECT_EQ(full.user, "me");
  EXPECT_EQ(full.password, "p@ss");
  EXPECT_EQ(full.database, 3U);
  EXPECT_FALSE(full.is_tls);
  EXPECT_EQ(full.redacted_url(), "redis+sentinel://one:26379,two:7000,[::1]:7001,[::2]:26379/my.master-1");
  const auto secure = parse_redis_url("rediss+sentinel://one/m").value();
  EXPECT_TRUE(secure.is_tls);
  EXPECT_EQ(secure.database, std::nullopt);
  EXPECT_EQ(secure.redacted_url(), "rediss+sentinel://one:26379/m");
  EXPECT_EQ(parse_redis_url("redis+sentinel://one,one:26379/m/").value().sentinels.size(), 1U);
}

TEST(SentinelAddress, ServerHasTheCredentialsOfTheGroup) {
  const auto server = parse_redis_url("rediss+sentinel://me:pw@one/m/3").value().with_address({"10.0.0.7", 6380});
  EXPECT_EQ(server.redacted_url(), "rediss://10.0.0.7:6380");
  EXPECT_EQ(server.user, "me");
  EXPECT_EQ(server.password, "pw");
  EXPECT_FALSE(server.uses_sentinels());
}

TEST(SentinelAddress, ErrorsNameTheFormAndNoPassword) {
  for (const char* wrong :
       {"redis+sentinel://", "redis+sentinel://:secret@one", "redis+sentinel://:secret@one/",
        "redis+sentinel://:secret@one,/m", "redis+sentinel://:secret@,one/m", "redis+sentinel://:secret@one/m/x",
        "redis+sentinel://:secret@one:0/m", "redis+sentinel://:secret@[::1/m", "redis+sentinel://:secret@one/a%20b"}) {
    const auto result = parse_redis_url(wrong);
    ASSERT_FALSE(result) << wrong;
    EXPECT_EQ(result.error().code, Code::invalid) << wrong;
    EXPECT_THAT(result.error().message, Not(HasSubstr("secret")));
  }
  EXPECT_THAT(parse_redis_url("redis+sentinel://one").error().message,
              HasSubstr("the name of the master is missing after the sentinels; write redis+sentinel://"));
}

TEST(ClusterAddress, IsRefusedWithTheAlternative) {
  for (const char* address : {"redis://one,two:7000/0", "redis+cluster://one", "rediss+cluster://one:7000"}) {
    const auto result = parse_redis_url(address);
    ASSERT_FALSE(result) << address;
    EXPECT_THAT(result.error().message, HasSubstr("Redis Cluster is not supported")) << address;
    EXPECT_THAT(result.error().message, HasSubstr("one for each context")) << address;
  }
}

TEST(ReplicationState, IsReadFromInfo) {
  const auto replica = parse_replication_state(
      "# Replication\r\nrole:slave\r\nmaster_host:10.0.0.7\r\nmaster_port:6379\r\nmaster_replid:abc\r\n"
      "master_replid2:0000\r\n");
  EXPECT_FALSE(replica.is_master);
  EXPECT_EQ(replica.master, "10.0.0.7:6379");
  EXPECT_EQ(replica.replication_id, "abc");
  const auto master = parse_replication_state("role:master\r\nmaster_replid:abc\r\nmaster_replid2:def\r\n");
  EXPECT_TRUE(master.is_master);
  EXPECT_EQ(master.previous_replication_id, "def");
}

SentinelOverview make_overview() {
  SentinelOverview overview;
  overview.master_name = "mymaster";
  overview.master = "10.0.0.1:6379";
  overview.replication_id = "abc";
  overview.quorum = 2;
  overview.sentinels = {{"s1:26379", "", "10.0.0.1:6379", ""}, {"s2:26379", "", "10.0.0.1:6379", ""}};
  overview.replicas = {{"10.0.0.2:6379", "", "abc"}, {"10.0.0.3:6379", "", "abc"}};
  overview.min_replicas = 1;
  return overview;
}

// Returns the state and the text of a row: "ok: ... remedy".
std::string find_row(const SentinelOverview& overview, const std::string& name, std::uint32_t wait_replicas = 2) {
  for (const Check& check : diagnose_sentinels(overview, wait_replicas)) {
    if (check.name == name) return std::string(to_string(check.status)) + ": " + check.detail + ' ' + check.remedy;
  }
  return "";
}

TEST(DoctorSentinels, HealthyGroupIsOk) {
  EXPECT_EQ(find_row(make_overview(), "sentinels"), "ok: 2 of 2 answer; quorum 2 ");
  EXPECT_EQ(find_row(make_overview(), "master and replicas"),
            "ok: master 10.0.0.1:6379 of mymaster, replication id abc; replicas 10.0.0.2:6379, 10.0.0.3:6379 ");
}

TEST(DoctorSentinels, ProblemsHaveRemedies) {
  SentinelOverview overview = make_overview();
  overview.sentinels[0].problem = "sentinel s1:26379: no answer";
  EXPECT_THAT(find_row(overview, "sentinels"), HasSubstr("warning: 1 of 2 answer"));
  overview = make_overview();
  overview.sentinels[1].master = "10.0.0.9:6379";
  EXPECT_THAT(find_row(overview, "sentinels"), HasSubstr("s2:26379 announces 10.0.0.9:6379"));
  overview = make_overview();
  overview.sentinels[1].quorum_problem = "NOQUORUM";
  EXPECT_THAT(find_row(overview, "sentinels"), HasSubstr("error: 2 of 2"));
  overview = make_overview();
  overview.replicas[1].replication_id = "xyz";
  EXPECT_THAT(find_row(overview, "master and replicas"),
              HasSubstr("10.0.0.3:6379 (has the unknown replication id xyz)"));
  overview = make_overview();
  overview.replicas[0].problem = "has no link to the master";
  EXPECT_THAT(find_row(overview, "master and replicas"), HasSubstr("warning: master"));
  EXPECT_THAT(find_row(make_overview(), "master and replicas", 1), HasSubstr("redis_wait_replicas = 2"));
  EXPECT_THAT(find_row(make_overview(), "master and replicas", 3), HasSubstr("error: master"));
  overview = make_overview();
  overview.min_replicas = 0;
  EXPECT_THAT(find_row(overview, "master and replicas"), HasSubstr("min-replicas-to-write 1"));
  overview.master.clear();
  EXPECT_EQ(find_row(overview, "master and replicas"), "");
}

}  // namespace
}  // namespace mycojobs::test
