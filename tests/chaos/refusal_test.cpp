// A Redis that refuses writes: out of memory, read-only, or with a full disk. Each step of the protocol is refused as a
// whole with an error, and succeeds after the fault has ended.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "chaos/agents_fixture.h"
#include "chaos/step_bench.h"
#include "chaos/steps.h"

namespace mycojobs::test {
namespace {

struct RedisFault {
  std::string name;
  std::function<bool()> start, stop;  // true: the fault has begun or ended
};

// Tries each step during the fault first.
void check_all_steps(const RedisServer& redis, PlainRedis& plain, const RedisFault& fault) {
  const auto store = open_store(redis);
  const auto deployments = open_deployments(redis);
  ASSERT_TRUE(store && deployments && store->leases(1) && deployments->list_deployments(1));
  const ProtocolSteps steps(*store, *deployments);
  unsigned refused = 0;
  for (const Step& step : steps.all()) {
    ASSERT_TRUE(fault.start()) << fault.name;
    const std::string digest_before = read_digest(plain);
    const auto faulty_result = step.execute();
    const std::string digest_after = read_digest(plain);
    ASSERT_TRUE(fault.stop()) << fault.name;
    if (faulty_result) continue;  // a step that removes data needs no memory, so it was executed completely
    ++refused;
    EXPECT_EQ(faulty_result.error().code, Code::unavailable) << step.name << ": " << faulty_result.error().message;
    EXPECT_EQ(digest_before, digest_after)
        << step.name << " was refused and has written: " << faulty_result.error().message;
    const auto retry_result = step.execute();
    ASSERT_TRUE(retry_result) << step.name << ": " << retry_result.error().message;
    EXPECT_EQ(find_violations(*store, 1), "") << "after " << step.name;
  }
  EXPECT_GE(refused, steps.all().size() * 9 / 10);
}

bool set_config(PlainRedis& redis, const std::string& name, const std::string& value) {
  return redis.command(0, {"CONFIG", "SET", name, value}).has_value();
}

TEST(Refusal, OutOfMemory) {
  const TempDir folder;
  const RedisServer redis(folder, make_digest_options({}));
  PlainRedis plain(redis, PlainRedis::kLongTimeoutMs);
  check_all_steps(redis, plain,
                  {"maxmemory", [&] { return set_config(plain, "maxmemory", "1"); },
                   [&] { return set_config(plain, "maxmemory", "0"); }});
}

TEST(Refusal, ReadOnlyReplica) {
  const TempDir folder;
  const RedisServer redis(folder, make_digest_options({}));
  PlainRedis plain(redis, PlainRedis::kLongTimeoutMs);
  // Replica of a server that does not exist: it never synchronises and keeps its data.
  check_all_steps(redis, plain,
                  {"replica",
                   [&] {
                     return plain.command(0, {"REPLICAOF", "127.0.0.1", "1"}).has_value();
                   },
                   [&] {
                     return plain.command(0, {"REPLICAOF", "NO", "ONE"}).has_value();
                   }});
}

TEST(Refusal, SnapshotCannotBeWritten) {
  const TempDir folder;
  const RedisServer redis(folder, make_digest_options({"--appendonly", "no", "--save", "3600 1000000"}));
  PlainRedis plain(redis, PlainRedis::kLongTimeoutMs);
  const std::string missing_folder = folder / "gone";
  const auto save_snapshot = [&](const std::string& expected) {
    plain.command(0, {"BGSAVE"});
    return eventually([&] {
      return read_info(plain, "persistence", "rdb_bgsave_in_progress") == "0" &&
             read_info(plain, "persistence", "rdb_last_bgsave_status") == expected;
    });
  };
  check_all_steps(redis, plain,
                  {"snapshot",
                   [&] {
                     std::filesystem::create_directory(missing_folder);
                     if (!set_config(plain, "dir", missing_folder)) return false;
                     std::filesystem::remove(missing_folder);
                     return save_snapshot("err");
                   },
                   [&] { return set_config(plain, "dir", folder.path().string()) && save_snapshot("ok"); }});
}

// Limits the size of Redis' files, which has the effect of a full disk. The limit can be lifted again.
bool limit_files(const RedisServer& redis, rlim_t bytes) {
  rlimit limit{};
  ::prlimit(redis.pid(), RLIMIT_FSIZE, nullptr, &limit);
  limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
  return ::prlimit(redis.pid(), RLIMIT_FSIZE, &limit, nullptr) == 0;
}

TEST(Refusal, DiskFullUnderTheAppendOnlyFile) {
  ::signal(SIGXFSZ, SIG_IGN);  // inherited by Redis, which then gets an error as from a full disk
  const TempDir folder;
  const RedisServer redis(folder, make_digest_options({}));
  PlainRedis plain(redis, PlainRedis::kLongTimeoutMs);
  const auto wait_for_write_status = [&](const std::string& expected) {
    return eventually([&] { return read_info(plain, "persistence", "aof_last_write_status") == expected; });
  };
  check_all_steps(redis, plain,
                  {"disk",
                   [&] {
                     if (!limit_files(redis, 1)) return false;
                     plain.command(0, {"INCR", "chaos:full"});  // the write that detects the error
                     return wait_for_write_status("err");
                   },
                   [&] { return limit_files(redis, RLIM_INFINITY) && wait_for_write_status("ok"); }});
}

class RefusedAgents : public AgentsTest {};

// If the fault is shorter than a lease, reports wait. If it is longer, the jobs are killed and delivered again.
TEST_F(RefusedAgents, ContinueWhenRedisHasMemoryAgain) {
  const RedisServer redis(folder_);
  start_agent(redis.url(), 1, "1,2");
  start_agent(redis.url(), 2, "1,2");
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(redis, 2)) << agents_.front()->err();
  PlainRedis admin(redis, PlainRedis::kLongTimeoutMs);
  Workload jobs(folder_, redis, random_);
  for (const double seconds : {1.0, 4.0, 0.5}) {
    run_workload(jobs, 2);
    ASSERT_TRUE(set_config(admin, "maxmemory", "1"));
    run_workload(jobs, seconds);
    ASSERT_TRUE(set_config(admin, "maxmemory", "0"));
  }
  wait_and_check_ends(jobs, redis);
}

}  // namespace
}  // namespace mycojobs::test
