// The connection between an agent and its Redis is interrupted in several ways, for less and for more than a lease.
#include <iostream>

#include "chaos/agents_fixture.h"
#include "chaos/proxy.h"

namespace mycojobs::test {
namespace {

constexpr double kMaxClaimDelayS = 15;  // 5 s are promised; other jobs come first, and the machine may be busy

struct Fault {
  LinkState state;
  double seconds;
};
constexpr Fault kFaults[] = {{LinkState::refusing, 1}, {LinkState::silent, 1},  {LinkState::dropping, 3},
                             {LinkState::slow, 4},     {LinkState::cutting, 3}, {LinkState::refusing, 4},
                             {LinkState::silent, 5},   {LinkState::cutting, 1}};

class Partition : public AgentsTest {};

TEST_F(Partition, AgentReconnectsWithoutDuplicates) {
  const RedisServer redis(folder_);
  Proxy proxy(folder_, folder_ / "redis.sock");
  // Context 1 is served only by the agent behind the proxy.
  const Process& proxied_agent = start_agent(proxy.url(), 1, "1,2");
  start_agent(redis.url(), 2, "2");
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(redis, 2, 2)) << proxied_agent.err();
  Workload jobs(folder_, redis, random_);
  std::uint32_t last_probe_id = 90000;  // ids that no other job of this test has
  for (const Fault& fault : kFaults) {
    proxy.set_state(fault.state);
    run_workload(jobs, fault.seconds);
    proxy.set_state(LinkState::whole);
    const std::int64_t restored_us = boot_time_us();
    PlannedJob probe;
    probe.kind = &find_job_kind("short");
    probe.name = {1, ++last_probe_id};
    jobs.add(probe);
    const bool claimed = eventually(
        [&] {
          jobs.run_once(false);
          const auto claim = jobs.plain_redis().command(1, {"EXISTS", "mj:claim:" + probe.key()});
          return claim && claim->number() == 1;
        },
        Seconds(kMaxClaimDelayS));
    EXPECT_TRUE(claimed) << to_string(fault.state) << " for " << fault.seconds << " s: " << proxied_agent.err();
    std::cout << "partition: " << to_string(fault.state) << " for " << fault.seconds
              << " s, its next job was claimed after " << (boot_time_us() - restored_us) / 1000
              << " ms, behind those that waited" << std::endl;
  }
  wait_and_check_ends(jobs, redis);
}

}  // namespace
}  // namespace mycojobs::test
