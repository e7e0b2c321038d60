#include "worker/upkeep/maintenance.h"

#include <gtest/gtest.h>

#include <utility>

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

  void keep_house() {
    auto done = housekeeping_->run_due_work(*store_, 1);
    ASSERT_TRUE(done) << done.error().message;
    wait_ms_ = *done;
  }
  void pass(std::uint64_t ms) { clock_.advance(ms); }
  // Advances the clock for `ms` and runs housekeeping whenever it asks to be run.
  void keep_house_for(std::uint64_t ms) {
    const std::uint64_t end = clock_.boot + ms;
    for (keep_house(); clock_.boot < end; keep_house()) pass(std::clamp<std::uint64_t>(wait_ms_, 1, end - clock_.boot));
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
  std::uint64_t waiting() { return *store_->queue_length(1, "queue:fake"); }
  std::string detail(Id runner) {
    return decode<Runner>(*store_->load(1, "runner:" + std::to_string(runner))).record.detail;
  }
  void hold(Id runner, const std::string& instance, std::uint32_t ttl_ms) {
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
  keep_house();
  clock_.unix += 600000;  // the wall clock jumps by ten minutes
  for (int i = 0; i < 29; ++i) {
    clock_.boot += 1000;
    keep_house();
  }
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  clock_.boot += 1500;
  keep_house();
  EXPECT_EQ(store_->leases(1)->size(), 0U);
  EXPECT_EQ(waiting(), 1U);
}

TEST_F(HousekeepingTest, ClockJumpSparesLongerLeases) {
  submit();
  ClaimRequest request{.context = 1, .runner = 1, .instance = "a1", .queues = {"queue:fake"}};
  request.lease_ms = 90000;
  ASSERT_EQ(store_->claim(request)->jobs.size(), 1U);
  keep_house();
  clock_.unix += 600000;
  for (int i = 0; i < 89; ++i) {
    clock_.boot += 1000;
    keep_house();
  }
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  clock_.boot += 1500;
  keep_house();
  EXPECT_EQ(store_->leases(1)->size(), 0U);
}

TEST_F(HousekeepingTest, SilentRunnersJobReturnsWithinALease) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  pass(399);  // the least favourable time for the first check
  keep_house_for(30000 + 1000 - 399);
  EXPECT_EQ(waiting(), 1U);
}

TEST_F(HousekeepingTest, ObservationsBeforeAnOutageDoNotCount) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  keep_house();
  pass(60000);
  housekeeping_->clear_observations(1);
  keep_house();
  EXPECT_EQ(store_->leases(1)->size(), 1U);
}

// The process is suspended for longer than a lease during the query, so the reply is the first observation of the
// lease.
TEST_F(HousekeepingTest, LeaseIsObservedWhenTheAnswerArrives) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  bool asked = false;
  server_.set_faults([&](const ServerCall& call) {
    if (call.name == "leases" && !std::exchange(asked, true)) clock_.boot += 40000;
    return Fault::none;
  });
  keep_house();
  server_.set_faults(nullptr);
  clock_.unix -= 10;  // the store would now accept the expiry
  keep_house();
  EXPECT_EQ(store_->leases(1)->size(), 1U);
  EXPECT_EQ(waiting(), 0U);
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
  keep_house();
  pass(31000);
  EXPECT_FALSE(housekeeping_->run_due_work(*store_, 1));
  EXPECT_EQ(store_->leases(1)->size(), 2U) << "those whose queue is no list";
  EXPECT_EQ(waiting(), 1U);
}

TEST_F(HousekeepingTest, DelayedJobIsQueuedWithinMilliseconds) {
  Job later;
  later.run_at_ms = clock_.unix + 7321;
  submit(later);
  keep_house();
  std::uint64_t queued_at = 0;
  for (std::uint64_t passed = 0; passed < 10000 && queued_at == 0;) {
    ASSERT_GT(wait_ms_, 0U);
    pass(wait_ms_), passed += wait_ms_;
    keep_house();
    if (waiting() == 1) queued_at = clock_.unix;
  }
  EXPECT_GE(queued_at, later.run_at_ms);
  EXPECT_LE(queued_at, later.run_at_ms + 5);
}

TEST_F(HousekeepingTest, HurryPollsSoonWithoutSpinning) {
  keep_house();
  Job soon;
  soon.run_at_ms = clock_.unix + 40;
  submit(soon);
  housekeeping_->request_early_tick();
  keep_house();
  pass(20);
  keep_house();
  EXPECT_EQ(wait_ms_, 20U) << "it knows of the job now";
  housekeeping_->request_early_tick();
  keep_house();
  EXPECT_EQ(wait_ms_, 20U) << "and looks no sooner for being hurried again";
}

TEST_F(HousekeepingTest, ManyDueJobsAreQueuedInSteps) {
  Job later;
  later.run_at_ms = clock_.unix + 1000;
  for (int i = 0; i < 250; ++i) submit(later);
  pass(1001);
  keep_house();
  EXPECT_EQ(waiting(), 100U);
  EXPECT_GT(wait_ms_, 0U) << "the store is everybody's";
  EXPECT_LE(wait_ms_, 10U);
  keep_house_for(100);
  EXPECT_EQ(waiting(), 250U);
}

TEST_F(HousekeepingTest, EndedJobsAreRemovedAfterTheirRetention) {
  settings_.retention_ms = 60000;
  housekeeping_ = std::make_unique<Maintenance>(clock_, settings_);
  const std::string key = submit();
  ASSERT_TRUE(store_->cancel(1, key));
  keep_house_for(59000);
  EXPECT_TRUE(store_->load(1, key));
  (void)claim();  // the next claim removes the queue entry of the cancelled job
  keep_house_for(62000);
  EXPECT_EQ(store_->load(1, key).error().code, Code::not_found);
}

TEST_F(HousekeepingTest, RunnerIsLostAfterAFullSilentLease) {
  hold(7, "a1", 30000);
  hold(8, "b1", 30000);
  keep_house_for(29000);
  hold(8, "b1", 30000);  // a heartbeat
  keep_house_for(30000);
  EXPECT_EQ(detail(7), "running") << "its time is over, but a lease has not been seen to pass";
  hold(8, "b1", 30000);
  keep_house_for(60000);
  EXPECT_EQ(detail(7), "lost");
  EXPECT_EQ(detail(8), "running");
  hold(7, "a1", 30000);
  EXPECT_EQ(detail(7), "running") << "it was only silent";
}

TEST_F(HousekeepingTest, RunnerThatSignedOffIsNotLost) {
  hold(7, "a1", 30000);
  ASSERT_TRUE(mark_runner(*store_, 1, 7, kRunnerStopped));
  ASSERT_TRUE(store_->release_runner(1, 7, {"a1", "host", "boot", 1}));
  keep_house_for(200000);
  EXPECT_EQ(detail(7), "stopped");
}

TEST_F(HousekeepingTest, OneFailureDoesNotStopTheRest) {
  submit();
  ASSERT_EQ(claim().size(), 1U);
  hold(7, "a1", 30000);
  // Another client's value; the sweep of due jobs needs this key.
  server_.put_text(1, "mj:horizon", "another client's");
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(housekeeping_->run_due_work(*store_, 1));
    pass(500);
  }
  EXPECT_EQ(waiting(), 1U);
  EXPECT_EQ(detail(7), "lost");
}

}  // namespace
}  // namespace mycojobs::test
