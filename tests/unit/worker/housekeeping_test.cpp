#include "worker/upkeep/maintenance.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/codec.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs::test {
namespace {

class HousekeepingTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  WorkerSettings settings_;  // the lease takes 30 s
  std::unique_ptr<Maintenance> housekeeping_ = std::make_unique<Maintenance>(clock_, settings_);

  void run_once() {
    auto done = housekeeping_->run_due_work(*store_, 1);
    ASSERT_TRUE(done) << done.error().message;
    wait_ms_ = *done;
  }
  void advance_clock(std::uint64_t ms) { clock_.advance(ms); }
  // Advances the clock for `ms` and runs housekeeping whenever it asks to be run.
  void run_for(std::uint64_t ms) {
    const std::uint64_t end = clock_.boot + ms;
    for (run_once(); clock_.boot < end; run_once())
      advance_clock(std::clamp<std::uint64_t>(wait_ms_, 1, end - clock_.boot));
  }
  std::string submit(Job job = {}) {
    job.caller_id = job.context_id = 1;
    job.script = "x";
    job.script_type = "fake";
    auto stored = store_->submit(job);
    EXPECT_TRUE(stored) << stored.error().message;
    return redis_key(*stored);
  }
  std::vector<ClaimedJob> claim() {
    ClaimRequest request{.context = 1, .runner = 1, .instance = "a1", .queues = {"queue:fake"}};
    return store_->claim(request)->jobs;
  }
  std::uint64_t count_queued() { return *store_->queue_length(1, "queue:fake"); }
  std::string read_detail(Id runner) {
    return decode<Runner>(*store_->load(1, "runner:" + std::to_string(runner))).record.detail;
  }
  void hold_runner_id(Id runner, const std::string& instance, std::uint32_t ttl_ms) {
    Runner record;
    record.id = runner;
    record.detail = kRunnerRunning;
    RunnerHolder held_by;
    ASSERT_TRUE(store_->hold_runner(1, record, {instance, "host", "boot", 1}, ttl_ms, "", held_by));
  }

  std::uint64_t wait_ms_ = 0;
};

TEST_F(HousekeepingTest, ClockJumpExpiresNothingBeforeAFullLease) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  run_once();
  clock_.unix += 600000;  // the wall clock jumps by ten minutes
  for (int i = 0; i < 29; ++i) {
    clock_.boot += 1000;
    run_once();
  }
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  clock_.boot += 1500;
  run_once();
  EXPECT_EQ(store_->leases(1)->size(), 0U);
  EXPECT_EQ(count_queued(), 1U);
}

TEST_F(HousekeepingTest, ClockJumpSparesLongerLeases) {
  submit();
  ClaimRequest request{.context = 1, .runner = 1, .instance = "a1", .queues = {"queue:fake"}};
  request.lease_ms = 90000;
  ASSERT_EQ(store_->claim(request)->jobs.size(), 1U);
  run_once();
  clock_.unix += 600000;
  for (int i = 0; i < 89; ++i) {
    clock_.boot += 1000;
    run_once();
  }
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  clock_.boot += 1500;
  run_once();
  EXPECT_EQ(store_->leases(1)->size(), 0U);
}

TEST_F(HousekeepingTest, SilentRunnersJobReturnsWithinALease) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  advance_clock(399);  // the least favourable time for the first check
  run_for(30000 + 1000 - 399);
  EXPECT_EQ(count_queued(), 1U);
}

// Another agent claims the job of a context that has had no activity, and dies before it renews the lease.
TEST_F(HousekeepingTest, JobOfAnIdleContextReturnsWithinALease) {
  run_for(20000);
  advance_clock(1);  // the least favourable time: just after a tick
  submit();
  ASSERT_EQ(claim().size(), 1U);
  run_for(30000 + 1000 - 1);
  EXPECT_EQ(count_queued(), 1U);
}

TEST_F(HousekeepingTest, IdleContextIsPolledRarely) {
  std::map<std::string, int> calls;
  server_.set_faults([&](const ServerCall& call) {
    ++calls[std::string(call.name)];
    return Fault::none;
  });
  run_for(8000);
  EXPECT_THAT(calls["tick"], testing::AllOf(testing::Ge(2), testing::Le(3))) << "at the start, and every 5 s";
  EXPECT_THAT(calls["timed_work"], testing::AllOf(testing::Ge(7), testing::Le(10)));
  EXPECT_LE(calls["leases"], 1) << "the check of runners counts their leases once in 30 s";
  calls.clear();
  housekeeping_->on_activity(1);
  run_for(2000);
  EXPECT_GE(calls["timed_work"], 9);
  EXPECT_THAT(calls["tick"], testing::AllOf(testing::Ge(3), testing::Le(4))) << "every 500 ms";
  server_.set_faults(nullptr);
}

TEST_F(HousekeepingTest, AgentsShareTheTicksOfAContext) {
  submit();
  constexpr int kAgents = 10;
  std::vector<std::unique_ptr<Maintenance>> agents;
  for (int i = 0; i < kAgents; ++i) agents.push_back(std::make_unique<Maintenance>(clock_, settings_));
  const auto run_all = [&](int ms) {
    for (const std::uint64_t end = clock_.boot + static_cast<std::uint64_t>(ms); clock_.boot < end; advance_clock(20)) {
      for (const auto& agent : agents) ASSERT_TRUE(agent->run_due_work(*store_, 1));
    }
  };
  run_all(1000);
  std::map<std::string, int> calls;
  server_.set_faults([&](const ServerCall& call) {
    ++calls[std::string(call.name)];
    return Fault::none;
  });
  run_all(20000);
  EXPECT_THAT(calls["tick"], testing::AllOf(testing::Ge(3), testing::Le(2 * kAgents))) << "one of all agents every 5 s";
  calls.clear();
  for (int i = 0; i < 20; ++i) {
    for (const auto& agent : agents) agent->on_activity(1);
    run_all(1000);
  }
  EXPECT_THAT(calls["tick"], testing::AllOf(testing::Ge(30), testing::Le(60))) << "one of all agents every 500 ms";
  server_.set_faults(nullptr);
}

TEST_F(HousekeepingTest, QueueDeadlineOfAnIdleContextIsKept) {
  run_for(20000);
  Job job;
  job.queue_timeout_ms = 5030;
  const std::string key = submit(job);
  run_for(5000);
  EXPECT_EQ(decode<Job>(*store_->load(1, key)).record.ended_ms, 0U);
  run_for(40);
  EXPECT_EQ(decode<Job>(*store_->load(1, key)).record.detail, "timeout");
}

TEST_F(HousekeepingTest, WaitingPrerequisitesAreReported) {
  std::vector<Id> reported;
  housekeeping_ = std::make_unique<Maintenance>(clock_, settings_, [&](Id context) { reported.push_back(context); });
  run_once();
  EXPECT_TRUE(reported.empty());
  Job job;
  job.prerequisites = {"redis:ready"};
  submit(job);
  EXPECT_TRUE(claim().empty());
  run_for(1000);
  ASSERT_FALSE(reported.empty());
  EXPECT_EQ(reported.front(), 1U);
}

// Idle contexts are polled rarely, so a job that is due soon is announced.
TEST_F(HousekeepingTest, OnlyAJobThatIsDueSoonWakesAgents) {
  const auto waiter = server_.open_waiter({{1, "queue:fake"}}, "");
  ASSERT_TRUE(waiter);
  ASSERT_TRUE((*waiter)->wait(0, true));
  Job job;
  job.run_at_ms = clock_.unix + 5000;
  submit(job);
  EXPECT_FALSE((*waiter)->wait(0, true)->has_work);
  job.run_at_ms = clock_.unix + 300;
  submit(job);
  EXPECT_TRUE((*waiter)->wait(0, true)->has_work);
}

TEST_F(HousekeepingTest, ObservationsBeforeAnOutageDoNotCount) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  run_once();
  advance_clock(60000);
  housekeeping_->clear_observations(1);
  run_once();
  EXPECT_EQ(store_->leases(1)->size(), 1U);
}

// The process is suspended for longer than a lease during the query, so the reply is the first observation of the
// lease.
TEST_F(HousekeepingTest, LeaseIsObservedWhenTheAnswerArrives) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  bool has_delayed = false;
  server_.set_faults([&](const ServerCall& call) {
    if (call.name == "leases" && !std::exchange(has_delayed, true)) clock_.boot += 40000;
    return Fault::none;
  });
  run_once();
  server_.set_faults(nullptr);
  clock_.unix -= 10;  // the store would now accept the expiry
  run_once();
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  EXPECT_EQ(count_queued(), 0U);
}

TEST_F(HousekeepingTest, FailedExpiryDoesNotDelayOthers) {
  for (int i = 0; i < 3; ++i) {
    submit();
    ASSERT_EQ(claim().size(), 1U);
  }
  for (const char* job : {"job:1:1", "job:1:3"}) {
    server_.run_command(1, {"HSET", std::string("mj:claim:") + job, "queue", "queue:taken"});
  }
  server_.put_text(1, "queue:taken", "another client's");
  run_once();
  advance_clock(31000);
  EXPECT_FALSE(housekeeping_->run_due_work(*store_, 1));
  EXPECT_EQ(store_->leases(1)->size(), 2U) << "only the claims with an invalid queue remain";
  EXPECT_EQ(count_queued(), 1U);
}

TEST_F(HousekeepingTest, DelayedJobIsQueuedWithinMilliseconds) {
  Job later;
  later.run_at_ms = clock_.unix + 7321;
  submit(later);
  run_once();
  std::uint64_t queued_at_ms = 0;
  for (std::uint64_t passed = 0; passed < 10000 && queued_at_ms == 0;) {
    ASSERT_GT(wait_ms_, 0U);
    advance_clock(wait_ms_), passed += wait_ms_;
    run_once();
    if (count_queued() == 1) queued_at_ms = clock_.unix;
  }
  EXPECT_GE(queued_at_ms, later.run_at_ms);
  EXPECT_LE(queued_at_ms, later.run_at_ms + 5);
}

TEST_F(HousekeepingTest, HurryPollsSoonWithoutSpinning) {
  run_once();
  Job soon;
  soon.run_at_ms = clock_.unix + 40;
  submit(soon);
  housekeeping_->request_early_tick(1);
  run_once();
  advance_clock(20);
  run_once();
  EXPECT_EQ(wait_ms_, 20U) << "the loop knows the new job";
  housekeeping_->request_early_tick(1);
  run_once();
  EXPECT_EQ(wait_ms_, 20U) << "a second request does not shorten the wait";
}

TEST_F(HousekeepingTest, ManyDueJobsAreQueuedInSteps) {
  Job later;
  later.run_at_ms = clock_.unix + 1000;
  for (int i = 0; i < 250; ++i) submit(later);
  advance_clock(1001);
  run_once();
  EXPECT_EQ(count_queued(), 100U);
  EXPECT_GT(wait_ms_, 0U) << "the store is shared with other clients";
  EXPECT_LE(wait_ms_, 10U);
  run_for(100);
  EXPECT_EQ(count_queued(), 250U);
}

TEST_F(HousekeepingTest, EndedJobsAreRemovedAfterTheirRetention) {
  settings_.retention = Retention::same_for_all(60000);
  housekeeping_ = std::make_unique<Maintenance>(clock_, settings_);
  const std::string key = submit();
  ASSERT_TRUE(store_->cancel(1, key));
  run_for(59000);
  EXPECT_TRUE(store_->load(1, key));
  (void)claim();  // the next claim removes the queue entry of the cancelled job
  run_for(62000);
  EXPECT_EQ(store_->load(1, key).error().code, Code::not_found);
}

TEST_F(HousekeepingTest, RunnerIsLostAfterAFullSilentLease) {
  hold_runner_id(7, "a1", 30000);
  hold_runner_id(8, "b1", 30000);
  run_for(29000);
  hold_runner_id(8, "b1", 30000);  // a heartbeat
  run_for(30000);
  EXPECT_EQ(read_detail(7), "running") << "the time has passed, but no expired lease was observed";
  hold_runner_id(8, "b1", 30000);
  run_for(60000);
  EXPECT_EQ(read_detail(7), "lost");
  EXPECT_EQ(read_detail(8), "running");
  hold_runner_id(7, "a1", 30000);
  EXPECT_EQ(read_detail(7), "running") << "the runner was only silent and has registered again";
}

TEST_F(HousekeepingTest, RunnerThatSignedOffIsNotLost) {
  hold_runner_id(7, "a1", 30000);
  ASSERT_TRUE(mark_runner(*store_, 1, 7, kRunnerStopped));
  ASSERT_TRUE(store_->release_runner(1, 7, {"a1", "host", "boot", 1}));
  run_for(200000);
  EXPECT_EQ(read_detail(7), "stopped");
}

TEST_F(HousekeepingTest, OneFailureDoesNotStopTheRest) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  hold_runner_id(7, "a1", 30000);
  // Another client's value; the sweep of due jobs needs this key.
  server_.put_text(1, "mj:journal-horizon", "another client's");
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(housekeeping_->run_due_work(*store_, 1));
    advance_clock(500);
  }
  EXPECT_EQ(count_queued(), 1U);
  EXPECT_EQ(read_detail(7), "lost");
}

}  // namespace
}  // namespace mycojobs::test
