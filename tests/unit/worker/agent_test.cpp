#include "worker/agent.h"

#include <gtest/gtest.h>

#include <atomic>

#include "support/agent_fixture.h"

namespace mycojobs::test {
namespace {

TEST_F(AgentTest, JobRunsAndItsEndIsStored) {
  start();
  const std::string key = submit("hello");
  ASSERT_TRUE(wait_for_runs(1));
  EXPECT_EQ(read(key).status, JobStatus::started);
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(read(key).result.at("echo"), "hello");
}

// The watchdog of the service manager depends on is_healthy().
TEST_F(AgentTest, IdlesWithProgressAndWithoutHangingThreads) {
  start();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(eventually([&] { return agent_->is_healthy(); })) << i;
  int rounds = 0;
  {
    const std::lock_guard hang(control_.mutex);  // the run loop blocks as soon as it accesses its sandbox
    while (rounds < 3 && eventually([&] { return agent_->is_healthy(); }, Seconds(2))) ++rounds;
  }
  EXPECT_LT(rounds, 3);  // an iteration may have started before the hang
  EXPECT_TRUE(eventually([&] { return agent_->is_healthy(); }));
}

TEST_F(AgentTest, SlotsAreNeverExceeded) {
  start(3);
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(submit());
  for (const std::string& key : keys) {
    ASSERT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      return read(key).ended_ms != 0;
    }));
  }
  EXPECT_EQ(control_.max_concurrent_runs, 3U);
  EXPECT_EQ(control_.launches, 20U);
  EXPECT_TRUE(eventually([&] { return agent_->count_busy_slots() == 0; }));
}

TEST_F(AgentTest, EndIsStoredAgainUntilAcknowledged) {
  start();
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  int failures = 6;
  const auto faulty = with_faults([&](std::string_view call) {
    if (call != "report" || failures == 0) return Fault::none;
    return --failures % 2 == 0 ? Fault::after : Fault::before;
  });
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return agent_->count_busy_slots() == 0; }));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(read(key).deliveries, 1U);
}

TEST_F(AgentTest, JobsOfALostClaimReplyAreReturnedUncharged) {
  int lost_replies = 1;
  const auto faulty = with_faults(
      [&](std::string_view call) { return call == "claim" && lost_replies-- > 0 ? Fault::after : Fault::none; });
  const std::string key = submit();
  start(2, 1000);
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).deliveries, 1U);
}

TEST_F(AgentTest, RunsOfADeadLauncherAreReturnedAndRepeated) {
  start();
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_launcher();
  ASSERT_TRUE(eventually([&] { return control_.launches == 2U; }));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(read(key).deliveries, 2U);
}

TEST_F(AgentTest, FailedStartIsNotADelivery) {
  control_.failing_launches = 4;  // more than the delivery limit of a job
  start();
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(read(key).deliveries, 1U);
}

TEST_F(AgentTest, NothingIsClaimedWithoutALauncher) {
  control_.is_restartable = false;
  start();
  control_.end_launcher();
  eventually([] { return false; }, Seconds(0.3));
  const std::string key = submit();
  eventually([] { return false; }, Seconds(0.8));
  EXPECT_EQ(read(key).status, JobStatus::dispatched);
  EXPECT_LE(read(key).deliveries, 1U);
  {
    std::lock_guard lock(control_.mutex);
    control_.is_restartable = true;
  }
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(key));
}

TEST_F(AgentTest, CancelReachesTheRun) {
  start(2, 1000);
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  ASSERT_TRUE(client_->cancel(1, key));
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).detail, "cancelled");
  EXPECT_EQ(control_.kill_calls.at(0).reason, KillReason::cancelled);
}

TEST_F(AgentTest, RenewalMovesTheFence) {
  start(2, 1000);
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  const std::uint64_t run = control_.runs().at(0);
  const auto fence = [&] {
    std::lock_guard lock(control_.mutex);
    return control_.fences[run];
  };
  const std::uint64_t first = fence();
  EXPECT_LE(first, clock_.boot_ms() + 800);
  EXPECT_TRUE(eventually([&] { return fence() > first + 900; }));
  EXPECT_LE(fence(), clock_.boot_ms() + 800);
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(key));
}

TEST_F(AgentTest, RunWithALostLeaseIsKilledAndReportsNothing) {
  start(1, 1000);
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  // Renewals fail until the lease has expired; then they reach the store and are refused.
  std::atomic<bool> cut_off{true};
  const auto faulty =
      with_faults([&](std::string_view call) { return call == "renew" && cut_off ? Fault::before : Fault::none; });
  ASSERT_TRUE(eventually([&] { return read(key).detail == "queued"; }));  // housekeeping requeued the job
  cut_off = false;
  ASSERT_TRUE(eventually([&] {
    std::lock_guard lock(control_.mutex);
    return !control_.kill_calls.empty() && control_.kill_calls[0].reason == KillReason::fenced;
  }));
  ASSERT_TRUE(wait_for_runs(1));  // the second delivery
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).deliveries, 2U);
}

TEST_F(AgentTest, ImpossibleJobEndsAsDeadLetterAndFreesItsSlot) {
  start(1);
  const std::string invalid_job = submit("bad");
  const std::string valid_job = submit("good");
  ASSERT_TRUE(wait_for_end(invalid_job));
  EXPECT_EQ(read(invalid_job).detail, "dead_letter");
  EXPECT_EQ(read(invalid_job).error, "script: bad");
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(valid_job));
}

// A record that another client has copied from another context, whose policy and secrets are not those of this one.
TEST_F(AgentTest, JobOfAnotherContextNeverRuns) {
  const std::string key = "job:7:5";
  server_.run_command(1, {"HSET", key, "id", "5", "caller_id", "7", "context_id", "2", "script", "x", "script_type",
                          "fake", "status", "dispatched"});
  server_.push(1, "queue:fake", key);
  start(1);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).detail, "dead_letter");
  EXPECT_EQ(read(key).error, "context_id: the record names 2, but the record is stored in context 1");
  EXPECT_EQ(control_.launches, 0U);
}

// Other clients can write invalid times. A job with an invalid time must not run immediately.
TEST_F(AgentTest, UnreadableTimesEndTheJobAsDeadLetter) {
  for (const auto& [field, value] : {std::pair{"run_at_ms", "2030-01-31T12:00:00Z"}, {"queue_timeout_ms", "-1"}}) {
    const std::string key = submit("x");
    ASSERT_TRUE(client_->save(1, key, {{field, value}}));
    if (!agent_) start(1);
    ASSERT_TRUE(wait_for_end(key));
    EXPECT_EQ(read(key).detail, "dead_letter");
    EXPECT_EQ(read(key).error.find(std::string(field) + ": "), 0U) << read(key).error;
    agent_.reset();
  }
}

// The record is valid, and another attempt may find a working helper.
TEST_F(AgentTest, BrokenHelperEndsTheJobAsSetupErrorAfterRetries) {
  settings_.retry = {1, 1};
  start(1);
  Job job = new_job("no helper");
  job.retries = 1;
  const std::string key = submit(job);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).detail, "setup_error");
  EXPECT_EQ(read(key).error, "the helper rests");
  EXPECT_EQ(read(key).attempt, 2U);
}

TEST_F(AgentTest, FailedStartIsRetriedAfterAPause) {
  std::atomic<int> claims{0};
  const auto counted = with_faults([&](std::string_view call) {
    claims += call == "claim" ? 1 : 0;
    return Fault::none;
  });
  const std::string later = submit("not now");
  start();
  eventually([] { return false; }, Seconds(1));
  EXPECT_GE(claims, 2);
  EXPECT_LE(claims, 40) << "at most one claim in 50 ms, and one for each hint";
  submit("good");
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(eventually([&] { return read(later).deliveries == 0; })) << "a job that did not start has no delivery";
}

TEST_F(AgentTest, DrainClaimsNothingAndFinishesRunningJobs) {
  start(1);
  const std::string first = submit();
  ASSERT_TRUE(wait_for_runs(1));
  agent_->drain();
  const std::string second = submit();
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return agent_->count_busy_slots() == 0; }));
  EXPECT_EQ(read(first).status, JobStatus::finished);
  eventually([] { return false; }, Seconds(0.2));
  EXPECT_EQ(read(second).status, JobStatus::dispatched);
}

}  // namespace
}  // namespace mycojobs::test
