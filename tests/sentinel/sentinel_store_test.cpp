// Stores during a failover: acknowledged writes, scripts, and a master that is cut off from its replicas.
#include <gmock/gmock.h>

#include <csignal>
#include <set>

#include "model/codec.h"
#include "sentinel/sentinel_servers.h"
#include "store/redis/store_connection.h"
#include "store/store.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;

Job make_job(Id id) {
  Job job;
  job.id = id;
  job.caller_id = 7;
  job.context_id = kContext;
  job.script = "pass";
  job.script_type = "python";
  return job;
}

ClaimRequest make_claim_request() {
  ClaimRequest request;
  request.context = kContext;
  request.runner = 1;
  request.instance = "here";
  request.queues = {"queue:python"};
  request.lease_ms = 60000;
  return request;
}

// Submits jobs with the next ids until `condition` is true. Adds the ids of acknowledged jobs.
template <class Condition>
void submit_until(Store& store, Id& next_id, std::set<Id>& acknowledged, const Condition& condition) {
  EXPECT_TRUE(eventually([&] {
    if (store.submit(make_job(next_id))) acknowledged.insert(next_id);
    ++next_id;
    return condition();
  }));
}

void expect_all_exist(Store& store, const std::set<Id>& ids) {
  for (const Id id : ids) {
    const auto record = store.load(kContext, redis_key(make_job(id)));
    EXPECT_TRUE(record) << "job " << id << ": " << record.error().message;
  }
}

class SentinelStore : public testing::Test {
 protected:
  TempDir folder_;
};

TEST_F(SentinelStore, NothingAcknowledgedIsLost) {
  RedisGroup group(folder_);
  Store store(make_store_config(group.url(), 2));
  Id next_id = 1;
  std::set<Id> acknowledged;
  std::size_t master = 0;
  for (int failover = 0; failover < 2; ++failover) {
    const auto target = acknowledged.size() + 50;
    submit_until(store, next_id, acknowledged, [&] { return acknowledged.size() >= target; });
    group.kill_server(master);
    const std::size_t next_master = group.wait_for_failover(master);
    group.start_server(master);  // all replicas must acknowledge, so that submissions need the third server
    const auto total = acknowledged.size() + 10;
    submit_until(store, next_id, acknowledged, [&] { return acknowledged.size() >= total; });
    master = next_master;
    EXPECT_TRUE(group.wait_until_complete());
  }
  expect_all_exist(store, acknowledged);
}

TEST_F(SentinelStore, AcknowledgementOfAnotherServerDoesNotCount) {
  const TempDir other_folder;
  RedisGroup one(folder_);
  const RedisGroup two(other_folder);
  FakeSentinel sentinel(one.address(0));
  StoreConnection connection(
      make_store_config("redis+sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "/mymaster", 2));
  ASSERT_TRUE(connection.command(kContext, {"SET", "written", "1"}));
  EXPECT_TRUE(connection.await_replicas(kContext));
  one.kill_server(0);
  sentinel.announce(two.address(0));
  const auto acknowledged = connection.await_replicas(kContext);
  ASSERT_FALSE(acknowledged);
  EXPECT_EQ(acknowledged.error().code, Code::unavailable);
  ASSERT_TRUE(connection.command(kContext, {"SET", "written", "1"}));
  EXPECT_TRUE(connection.await_replicas(kContext));
}

// Scripts are sent again to a server that does not have them, also in the half-calls of a report.
TEST_F(SentinelStore, NewMasterHasNoScripts) {
  RedisGroup group(folder_);
  Store store(make_store_config(group.url()));
  ASSERT_TRUE(store.submit(make_job(1)));
  ASSERT_TRUE(store.submit(make_job(2)));
  auto first = store.claim(make_claim_request());
  ASSERT_TRUE(first);
  for (std::size_t i = 1; i < kServers; ++i) ASSERT_TRUE(group.command(i, {"SCRIPT", "FLUSH"}));
  ASSERT_TRUE(group.wait_until_complete());
  ASSERT_TRUE(group.ask_sentinel(0, {"SENTINEL", "FAILOVER", "mymaster"}));
  group.wait_for_failover(0);
  // The old master accepts writes until the sentinels have made it a replica, and then loses them.
  ASSERT_TRUE(eventually([&] { return group.role(0) == "slave"; }));
  Result<ClaimReply> second;
  EXPECT_TRUE(eventually([&] {
    second = store.claim(make_claim_request());
    return second && !second->jobs.empty();
  }));
  ASSERT_TRUE(second) << second.error().message;
  for (const auto& claimed : {first->jobs.at(0), second->jobs.at(0)}) {
    EndReport end{claimed.ref, {}};
    end.end.status = JobStatus::finished;
    const Report reports[] = {end};
    // The sentinels may announce the new master after the first call to it, which ends the connections once more.
    Result<std::vector<Result<void>>> stored;
    EXPECT_TRUE(eventually([&] {
      stored = store.report(kContext, reports);
      return stored || stored.error().code != Code::unavailable;
    }));
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_TRUE(stored->at(0)) << stored->at(0).error().message;
  }
}

// An agent has claimed a job, and the claim has not reached the replica that becomes the master: the job is claimed a
// second time, and only the end of the second claim is accepted.
TEST_F(SentinelStore, UnreplicatedClaimHasOneEnd) {
  RedisGroup group(folder_);
  Store first(make_store_config(group.url())), second(make_store_config(group.url()));
  ASSERT_TRUE(first.submit(make_job(1)));
  ASSERT_TRUE(group.wait_until_complete());
  ASSERT_EQ(group.command(0, {"WAIT", "2", "10000"})->number(), 2U);
  for (std::size_t i = 0; i < kServers; ++i) group.kill_sentinel(i);  // the test is the sentinel from here
  for (std::size_t i = 1; i < kServers; ++i) group.signal_server(i, SIGSTOP);
  const auto lost = first.claim(make_claim_request());
  ASSERT_TRUE(lost);
  ASSERT_EQ(lost->jobs.size(), 1U);
  group.kill_server(0);  // the sockets of the stopped replicas have unread data
  for (std::size_t i = 1; i < kServers; ++i) group.kill_server(i);
  group.start_server(1);
  FakeSentinel sentinel(group.address(1));
  const std::string url = "redis+sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "/mymaster";
  Store after(make_store_config(url)), late(make_store_config(url));
  const auto claimed = after.claim(make_claim_request());
  ASSERT_TRUE(claimed) << claimed.error().message;
  ASSERT_EQ(claimed->jobs.size(), 1U);
  const auto report_end = [&](Store& store, const ClaimedJob& job) {
    EndReport end{job.ref, {}};
    end.end.status = JobStatus::finished;
    const Report reports[] = {end};
    auto stored = store.report(kContext, reports);
    return stored ? stored->at(0) : Result<void>(tl::unexpected(stored.error()));
  };
  const auto refused = report_end(late, lost->jobs[0]);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::stale_claim);
  EXPECT_TRUE(report_end(after, claimed->jobs[0]));
}

// A master that is cut off from its replicas and sentinels for ten seconds. A client that reaches only this master gets
// no acknowledgement; clients with sentinels use the new master.
TEST_F(SentinelStore, IsolatedMasterAcknowledgesNothing) {
  GroupOptions options;
  options.server_options = {"--user", "app",
                            "on",     ">app-secret",
                            "~*",     "&*",
                            "+@all",  "--min-replicas-to-write",
                            "1",      "--min-replicas-max-lag",
                            "3"};
  options.server_user = "app";
  options.server_password = "app-secret";
  RedisGroup group(folder_, options);
  Store store(make_store_config(group.url("app:app-secret"), 2));
  Store isolated(make_store_config("redis://app:app-secret@127.0.0.1:" + std::to_string(group.server_port(0)), 2));
  Id next_id = 1, isolated_id = 100000;
  std::set<Id> acknowledged, wrongly_acknowledged;
  submit_until(store, next_id, acknowledged, [&] { return acknowledged.size() >= 20; });
  group.set_isolated(0, true);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string last_error;
  submit_until(isolated, isolated_id, wrongly_acknowledged, [&] {
    const auto refused = isolated.submit(make_job(isolated_id));
    if (!refused) last_error = refused.error().message;
    (void)store.submit(make_job(next_id));
    return std::chrono::steady_clock::now() >= end;
  });
  EXPECT_EQ(wrongly_acknowledged.size(), 0U);
  EXPECT_THAT(last_error, HasSubstr("NOREPLICAS"));
  const std::size_t master = group.wait_for_failover(0);
  EXPECT_EQ(group.role(0), "master");  // there are two masters
  group.set_isolated(0, false);
  EXPECT_TRUE(eventually([&] { return group.role(0) == "slave"; }));
  EXPECT_TRUE(group.wait_until_complete());
  const auto total = acknowledged.size() + 10;
  submit_until(store, next_id, acknowledged, [&] { return acknowledged.size() >= total; });
  EXPECT_EQ(group.master(), master);
  expect_all_exist(store, acknowledged);
}

TEST_F(SentinelStore, UnknownReplicationIdIsLogged) {
  RedisGroup group(folder_);
  FakeSentinel sentinel(group.address(0));
  Store store(make_store_config("redis+sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "/mymaster"));
  ASSERT_TRUE(store.submit(make_job(1)));
  testing::internal::CaptureStderr();
  group.kill_server(0);
  group.start_server(0);
  const auto submitted = store.submit(make_job(2));
  const std::string log_lines = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(submitted) << submitted.error().message;
  EXPECT_THAT(log_lines, HasSubstr("has the unknown replication id"));
}

}  // namespace
}  // namespace mycojobs::test
