// The connection between an agent and its Redis is interrupted in several ways, for less and for more than a lease.
#include <iostream>

#include "chaos/agents_fixture.h"
#include "chaos/proxy.h"

namespace mycojobs::test {
namespace {

constexpr double kBackSeconds = 15;  // 5 s are promised; other jobs come first, and the machine may be busy

struct Fault {
  Wire wire;
  double seconds;
};
constexpr Fault kFaults[] = {{Wire::refusing, 1}, {Wire::silent, 1},   {Wire::dropping, 3}, {Wire::slow, 4},
                             {Wire::cutting, 3},  {Wire::refusing, 4}, {Wire::silent, 5},   {Wire::cutting, 1}};

class Partition : public AgentsTest {};

TEST_F(Partition, AgentReconnectsWithoutDuplicates) {
  const RedisServer redis(folder_);
  Proxy wire(folder_, folder_ / "redis.sock");
  // Context 1 is served only by the agent behind the proxy.
  const Process& behind = start_agent(wire.url(), 1, "1,2");
  start_agent(redis.url(), 2, "2");
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(redis, 2, 2)) << behind.err();
  Workload jobs(folder_, redis, random_);
  std::uint32_t probes = 90000;  // ids that no other job of this test has
  for (const Fault& fault : kFaults) {
    wire.be(fault.wire);
    work(jobs, fault.seconds);
    wire.be(Wire::whole);
    const std::int64_t back_us = boot_us();
    PlannedJob probe;
    probe.kind = &kind("short");
    probe.name = {1, ++probes};
    jobs.add(probe);
    const bool claimed = eventually(
        [&] {
          jobs.turn(false);
          const auto claim = jobs.plain().command(1, {"EXISTS", "mj:claim:" + probe.key()});
          return claim && claim->number() == 1;
        },
        Seconds(kBackSeconds));
    EXPECT_TRUE(claimed) << to_string(fault.wire) << " for " << fault.seconds << " s: " << behind.err();
    std::cout << "partition: " << to_string(fault.wire) << " for " << fault.seconds
              << " s, its next job was claimed after " << (boot_us() - back_us) / 1000
              << " ms, behind those that waited" << std::endl;
  }
  settle(jobs, redis);
}

}  // namespace
}  // namespace mycojobs::test
