// Hosts with wrong clocks that jump, and a Redis with such a clock.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "chaos/agents_fixture.h"
#include "chaos/wrong_clock.h"

namespace mycojobs::test {
namespace {

constexpr std::int64_t kTenMinutes = 600;

// A Redis with its own clock. The environment of this process is restored after the start.
std::unique_ptr<RedisServer> start_skewed_redis(const TempDir& folder, const SkewedClock& redis_clock) {
  ::setenv("LD_PRELOAD", MJ_SKEW, 1);
  ::setenv("MJ_SKEW_FILE", redis_clock.path().c_str(), 1);
  auto redis = std::make_unique<RedisServer>(folder);
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("MJ_SKEW_FILE");
  return redis;
}

class ClockSkew : public AgentsTest {};

TEST_F(ClockSkew, HostsMayDifferByTenMinutesAndJump) {
  const RedisServer redis(folder_);
  const SkewedClock ahead(folder_, "ahead", kTenMinutes);
  const SkewedClock behind(folder_, "behind", -kTenMinutes);
  const SkewedClock jumping(folder_, "jumping", 0);
  start_agent(redis.url(), 1, "1,2", ahead.environment());
  start_agent(redis.url(), 2, "1,2", behind.environment());
  start_agent(redis.url(), 3, "1,2", jumping.environment());
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(redis, 2) && wait_until_registered(redis, 3))
      << agents_.front()->err();
  Workload jobs(folder_, redis, random_);
  for (const int sign : {1, -1, 1, -1, 0}) {
    jumping.set_shift_s(sign * kTenMinutes);
    run_workload(jobs, 2.5);
  }
  wait_and_check_ends(jobs, redis);
  for (const auto& job : jobs.jobs()) {
    EXPECT_LE(redis.cli(job.name.context, {"HGET", job.key(), "deliveries"}), "1") << job.key();
  }
}

TEST_F(ClockSkew, RedisMayJumpAhead) {
  const SkewedClock redis_clock(folder_, "redis", 0);
  const auto redis = start_skewed_redis(folder_, redis_clock);
  start_agent(redis->url(), 1, "1,2");
  start_agent(redis->url(), 2, "1,2");
  ASSERT_TRUE(wait_until_registered(*redis, 1) && wait_until_registered(*redis, 2)) << agents_.front()->err();
  Workload jobs(folder_, *redis, random_);
  for (const int times : {0, 1, 2}) {
    redis_clock.set_shift_s(times * kTenMinutes);
    run_workload(jobs, 4);
  }
  wait_and_check_ends(jobs, *redis, true);
}

// The leases appear to last ten minutes longer, but the jobs of a dead agent must not wait that long.
TEST_F(ClockSkew, DeadRunnersAreFoundAfterRedisJumpsBack) {
  const SkewedClock redis_clock(folder_, "redis", 0);
  const auto redis = start_skewed_redis(folder_, redis_clock);
  start_agent(redis->url(), 1, "1,2");
  ASSERT_TRUE(wait_until_registered(*redis, 1)) << agents_.front()->err();
  Workload jobs(folder_, *redis, random_);
  constexpr std::uint32_t kFirst = 90001, kLast = 90003;
  for (std::uint32_t id = kFirst; id <= kLast; ++id) {
    PlannedJob job;
    job.kind = &find_job_kind("long");
    job.name = {1, id};
    jobs.add(job);
  }
  ASSERT_TRUE(eventually([&] {
    jobs.run_once(false);
    return witness_.lifetimes().size() == kLast - kFirst + 1;
  }));
  redis_clock.set_shift_s(-kTenMinutes);
  agents_.front()->signal(SIGKILL);
  start_agent(redis->url(), 2, "1,2");
  wait_and_check_ends(jobs, *redis, true);
}

}  // namespace
}  // namespace mycojobs::test
