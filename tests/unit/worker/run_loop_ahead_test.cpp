// Jobs claimed ahead of free slots, and the Pace that limits their number.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/fake_sandbox.h"
#include "support/process.h"
#include "worker/runs/run_loop.h"

namespace mycojobs::test {
namespace {

class RunLoopAheadTest : public ::testing::Test {
 protected:
  RunLoopAheadTest() {
    settings_.slots = 1;
    loop_ =
        std::make_unique<RunLoop>(std::make_unique<FakeSandbox>(control_), clock_, settings_, run_rate_,
                                  RunLoop::Callbacks{[this](RunReport report) { posted_.post(std::move(report)); }});
  }
  void start(RunNumber run) {
    JobStart increment;
    increment.run = run;
    increment.claim = {1, "job:1:" + std::to_string(run), "claim", "token"};
    increment.context = 1;
    increment.specs.emplace_back().context = 1;
    JobFacts facts;
    increment.conversation = FakeExecutor().begin(facts, nullptr).value();
    loop_->start(std::move(increment));
  }
  bool wait_for_reports(std::size_t count) {
    return eventually([&] {
      for (RunReport& each : posted_.consume_all()) reports_.push_back(std::move(each));
      return reports_.size() >= count;
    });
  }
  // Returns the released runs, in the order of the reports.
  std::vector<RunNumber> list_released() const {
    std::vector<RunNumber> runs;
    for (const RunReport& each : reports_) {
      const auto* release = std::get_if<Release>(&each.report);
      if (release != nullptr && !release->was_started && each.is_last) runs.push_back(each.run);
    }
    return runs;
  }

  SystemClock clock_;
  SandboxControl control_;
  WorkerSettings settings_;
  Mailbox<RunReport> posted_;
  std::vector<RunReport> reports_;
  RunRate run_rate_;
  std::unique_ptr<RunLoop> loop_;
};

// job_runs_test.cpp tests the order. On a loaded machine some of these jobs are released instead of started.
TEST_F(RunLoopAheadTest, NeverRunsMoreThanItsSlots) {
  for (RunNumber run = 1; run <= 3; ++run) start(run);
  ASSERT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    for (RunReport& each : posted_.consume_all()) reports_.push_back(std::move(each));
    return reports_.size() >= 3;
  }));
  EXPECT_EQ(control_.max_concurrent_runs, 1U);
}

TEST_F(RunLoopAheadTest, JobThatWaitsTooLongIsNextInItsQueue) {
  for (RunNumber run = 1; run <= 3; ++run) start(run);
  ASSERT_TRUE(wait_for_reports(2));
  EXPECT_EQ(list_released(), (std::vector<RunNumber>{3, 2})) << "the job that is released last is claimed first";
  EXPECT_TRUE(control_.is_running(1));
  EXPECT_EQ(control_.launches, 1U);
}

TEST_F(RunLoopAheadTest, CancelledOrFencedWaitingJobNeverStarts) {
  for (RunNumber run = 1; run <= 3; ++run) start(run);
  ASSERT_TRUE(eventually([&] { return control_.is_running(1); }));
  loop_->kill(3, KillReason::cancelled);
  loop_->kill(2, KillReason::fenced);
  ASSERT_TRUE(wait_for_reports(2));
  EXPECT_EQ(list_released(), (std::vector<RunNumber>{3, 2}));
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(wait_for_reports(3));
  EXPECT_EQ(control_.launches, 1U);
}

TEST_F(RunLoopAheadTest, AllJobsIncludingWaitingOnesAreReturned) {
  for (RunNumber run = 1; run <= 2; ++run) start(run);
  ASSERT_TRUE(eventually([&] { return control_.is_running(1); }));
  loop_->return_jobs();
  ASSERT_TRUE(wait_for_reports(2));
  EXPECT_EQ(list_released(), (std::vector<RunNumber>{2, 1}));
  EXPECT_EQ(control_.launches, 1U);
}

TEST_F(RunLoopAheadTest, RenewedLeaseOfAWaitingJobIsItsFence) {
  for (RunNumber run = 1; run <= 2; ++run) start(run);
  ASSERT_TRUE(eventually([&] { return control_.is_running(1); }));
  loop_->fence(2, 4711);
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return control_.is_running(2) || !list_released().empty(); }));
  if (control_.is_running(2)) {  // on a loaded machine the job has been released
    EXPECT_EQ(control_.get_fence(2), 4711U);
  }
}

TEST(Pace, ClaimsAheadOnlyAfterFastEnds) {
  RunRate pace;
  std::uint64_t now = 1'000'000;
  EXPECT_EQ(pace.claim_ahead_count(now), 0U);
  for (int i = 0; i < 5; ++i) pace.on_run_ended(now += 500);
  EXPECT_EQ(pace.claim_ahead_count(now), 0U) << "a few";
  for (int i = 0; i < 100; ++i) pace.on_run_ended(now += 500);
  EXPECT_EQ(pace.claim_ahead_count(now), RunRate::kClaimAheadUs / 500);
  for (int i = 0; i < 100; ++i) pace.on_run_ended(now += 100);
  EXPECT_EQ(pace.claim_ahead_count(now), RunRate::kMaxClaimedAhead);
  EXPECT_GT(pace.report_batch_delay_us(now), 0U);
}

TEST(Pace, SlowEndsDisableClaimingAhead) {
  RunRate pace;
  std::uint64_t now = 1'000'000;
  for (int i = 0; i < 200; ++i) pace.on_run_ended(now += 5000);
  EXPECT_EQ(pace.claim_ahead_count(now), RunRate::kClaimAheadUs / 5000);
  EXPECT_EQ(pace.report_batch_delay_us(now), 0U);
  for (int i = 0; i < 200; ++i) pace.on_run_ended(now += RunRate::kClaimAheadUs + 1000);
  EXPECT_EQ(pace.claim_ahead_count(now), 0U);
}

TEST(Pace, NothingIsClaimedAheadAfterAPauseOrAStall) {
  RunRate pace;
  std::uint64_t now = 1'000'000;
  for (int i = 0; i < 200; ++i) pace.on_run_ended(now += 500);
  EXPECT_EQ(pace.claim_ahead_count(now + RunRate::kClaimAheadUs + 1), 0U) << "no run has ended for a long time";
  EXPECT_EQ(pace.report_batch_delay_us(now + RunRate::kClaimAheadUs + 1), 0U);
  EXPECT_EQ(pace.claim_ahead_count(now), RunRate::kClaimAheadUs / 500);
  pace.on_claim_ahead_failed();
  EXPECT_EQ(pace.claim_ahead_count(now), 0U);
}

}  // namespace
}  // namespace mycojobs::test
