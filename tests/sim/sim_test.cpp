// Simulated random lives of a whole system. A seed reproduces a life exactly: MYCOJOBS_SIM_SEED=<seed>
// MYCOJOBS_SIM_ROUNDS=1 sim_tests
// --gtest_filter=Sim.RandomSeedsHoldTheInvariants
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "shortest.h"
#include "support/test_settings.h"

namespace mycojobs::sim {
namespace {

TEST(Sim, RandomSeedsHoldTheInvariants) {
  const std::uint64_t first = test::read_setting("MYCOJOBS_SIM_SEED", 1);
  const std::uint64_t rounds = test::read_setting("MYCOJOBS_SIM_ROUNDS", 60);
  LifeReport all;
  int failures = 0;
  std::uint64_t done = 0;
  for (std::uint64_t seed = first; seed < first + rounds && failures < 3; ++seed, ++done) {
    const LifeReport life = Life(seed).run();
    if (!life.violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << life.violation << "\nAgain: MYCOJOBS_SIM_SEED=" << seed
                    << " MYCOJOBS_SIM_ROUNDS=1";
    }
    all.jobs += life.jobs, all.runs += life.runs, all.facts += life.facts, all.kills += life.kills;
    all.stops += life.stops, all.restarts += life.restarts, all.jumps += life.jumps, all.calls += life.calls;
    all.parked += life.parked, all.flows += life.flows, all.fault_counts += life.fault_counts;
  }
  std::printf(
      "seeds %llu to %llu: %zu jobs (%zu parked for good), %zu flows, %zu runs, %zu facts, %zu calls, %zu kills, %zu "
      "stops, %zu restarts of the server, %zu jumps of clocks; of the calls %s\n",
      static_cast<unsigned long long>(first), static_cast<unsigned long long>(first + done - 1), all.jobs, all.parked,
      all.flows, all.runs, all.facts, all.calls, all.kills, all.stops, all.restarts, all.jumps,
      to_text(all.fault_counts).c_str());
}

// Many short lives with distinct seeds. A failing seed is shown in its shortest form: MYCOJOBS_SIM_SEED=<seed>
// MYCOJOBS_SIM_SCHEDULES=1 sim_tests --gtest_filter=Schedules/*.EndAsExpected/0
class Schedules : public testing::TestWithParam<std::uint64_t> {};
constexpr std::uint64_t kShares = 8;

TEST_P(Schedules, EndAsExpected) {
  const std::uint64_t count = test::read_setting("MYCOJOBS_SIM_SCHEDULES", 20000 / kShares);
  const std::uint64_t first = test::read_setting("MYCOJOBS_SIM_SEED", 1) + GetParam() * count;
  LifeReport all;
  constexpr std::uint64_t kProgressInterval = 5000;  // about a minute
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    if (const std::uint64_t done = seed - first; done > 0 && done % kProgressInterval == 0)
      std::fprintf(stderr, "share %llu of %llu: %llu of %llu schedules\n",
                   static_cast<unsigned long long>(GetParam() + 1), static_cast<unsigned long long>(kShares),
                   static_cast<unsigned long long>(done), static_cast<unsigned long long>(count));
    const LifeReport life = Life(seed, brief_life()).run();
    if (!life.violation.empty()) {
      FAIL() << "seed " << seed << ": " << to_text(shorten(seed, brief_life())) << "\nAgain: MYCOJOBS_SIM_SEED=" << seed
             << " MYCOJOBS_SIM_SCHEDULES=1";
    }
    all.jobs += life.jobs, all.runs += life.runs, all.calls += life.calls, all.flows += life.flows;
    all.restarts += life.restarts, all.fault_counts += life.fault_counts;
  }
  std::printf(
      "%llu schedules from seed %llu: %zu jobs, %zu flows, %zu runs, %zu restarts of the server, %zu calls; %s\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(first), all.jobs, all.flows, all.runs,
      all.restarts, all.calls, to_text(all.fault_counts).c_str());
  if (count < 1000) return;  // too few schedules to meet every fault
  const FaultCounts& counts = all.fault_counts;
  for (const std::size_t each : {counts.requests_lost, counts.replies_lost, counts.cut, counts.abandoned, counts.slow,
                                 counts.overtaken, counts.killed, counts.stopped, all.restarts, all.flows}) {
    EXPECT_GT(each, count / 50) << "a fault that is hardly ever injected is not tested";
  }
}

INSTANTIATE_TEST_SUITE_P(Share, Schedules, testing::Range<std::uint64_t>(0, kShares));

TEST(Sim, SeedRepeatsARunExactly) {
  for (const std::uint64_t seed : {7, 8}) {
    const LifeReport first = Life(seed).run(), second = Life(seed).run();
    EXPECT_EQ(first.history, second.history) << seed;
    EXPECT_EQ(first.calls, second.calls) << seed;
  }
  EXPECT_NE(Life(7).run().history, Life(8).run().history);
}

void expect_no_violation(Stage& stage) {
  for (const std::string& each : find_violations(stage.store())) stage.world.report_violation(each);
  EXPECT_EQ(stage.world.violation(), "");
}
void submit(Stage& stage, Id id, const std::string& script) {
  ASSERT_TRUE(stage.store().submit(Stage::job(id, script)).has_value());
}
std::function<bool()> make_running_condition(Stage& stage, Id id) {
  return [&stage, id] { return stage.checker.is_running(make_job_key(id)); };
}

// The limit holds for any time of the agent's death.
TEST(Sim, JobOfADeadAgentRunsAgainWithinALease) {
  for (const std::uint32_t lease_ms : {1000U, 2000U, 10000U}) {
    Ms max_recovery_ms = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Stage stage({seed, lease_ms, 0, 0});
      stage.add_service().start(0);
      stage.services[0]->set_restart_delay(kNever);
      submit(stage, 1, "ok 600000");
      ASSERT_TRUE(stage.world.run_until(1000, make_running_condition(stage, 1)));
      stage.add_service().start(stage.world.random_below(lease_ms));
      stage.world.run_until(2 * lease_ms + stage.world.random_below(lease_ms));
      ASSERT_NE(stage.services[0]->agent(), nullptr);
      const Ms killed_at = stage.world.now();
      stage.world.kill(*stage.services[0]->agent());
      stage.world.run_until(killed_at + 100);
      ASSERT_FALSE(stage.checker.is_running(make_job_key(1)));
      ASSERT_TRUE(stage.world.run_until(killed_at + 10ULL * lease_ms, make_running_condition(stage, 1)));
      max_recovery_ms = std::max(max_recovery_ms, stage.world.now() - killed_at);
      expect_no_violation(stage);
    }
    EXPECT_LE(max_recovery_ms, lease_ms + 1000);
  }
}

// An agent with a shorter lease observes another agent's claim while the server's clock jumps ahead.
TEST(Sim, ShorterLeaseDoesNotEndALongerOneEarly) {
  Stage stage({1, 6000, 0, 0});
  stage.add_service().start(0);
  submit(stage, 1, "ok 8000");
  ASSERT_TRUE(stage.world.run_until(1000, make_running_condition(stage, 1)));
  stage.add_service([](WorkerSettings& settings) { settings.lease_ms = 1000; }).start(0);
  stage.world.run_until(2500);
  stage.world.stop(*stage.services[0]->agent(), 4000);
  stage.world.server_clock().shift_ms = 60000;
  stage.world.run_until(60000, [&] { return stage.checker.job(make_job_key(1)).state == JobState::ended; });
  EXPECT_EQ(stage.checker.job(make_job_key(1)).status, JobStatus::finished);
  expect_no_violation(stage);
}

// A renewal is visible to observers even while the lease ends later than a lease time from now.
TEST(Sim, UnstableClockNeverLetsTwoRunsOverlap) {
  Stage stage({1, 2000});
  stage.add_service().start(0);
  stage.add_service().start(0);
  submit(stage, 1, "ok 20000");
  ASSERT_TRUE(stage.world.run_until(2000, make_running_condition(stage, 1)));
  for (const std::int64_t shift : {-60000, 0, 30000, -30000, 60000}) {
    stage.world.server_clock().shift_ms = shift;
    stage.world.run_until(stage.world.now() + 3500);
  }
  expect_no_violation(stage);
}

}  // namespace
}  // namespace mycojobs::sim
