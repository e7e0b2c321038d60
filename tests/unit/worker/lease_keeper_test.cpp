// Heartbeats of an agent: their interval, their results for the runs, and the time from which the new fence of a run
// holds.
#include "worker/leases/lease_keeper.h"

#include <gmock/gmock.h>

#include "model/codec.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint32_t kLeaseMs = 30000;

class LeaseKeeperTest : public testing::Test {
 protected:
  static WorkerSettings settings() {
    WorkerSettings settings;
    settings.runner.id = 1;
    settings.contexts = {1};
    settings.lease_ms = kLeaseMs;
    return settings;
  }
  // A claimed job, which the keeper renews as this run.
  ClaimRef claim(RunNumber run) {
    Job job;
    job.caller_id = 7;
    job.context_id = 1;
    job.script = "x";
    job.script_type = "fake";
    EXPECT_TRUE(store_->submit(job));
    const ClaimRequest request{
        .context = 1, .runner = 1, .instance = self_.instance, .queues = {"queue:fake"}, .lease_ms = kLeaseMs};
    auto claimed = store_->claim(request);
    EXPECT_EQ(claimed->jobs.size(), 1U);
    keeper_.add(run, claimed->jobs.at(0).ref);
    return claimed->jobs.at(0).ref;
  }
  // The answer to a renewal comes so much later.
  void delay_answers(std::uint64_t ms) {
    server_.set_faults([this, ms](const ServerCall& call) {
      if (call.name == "renew") clock_.advance(ms);
      return Fault::none;
    });
  }

  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  StoreHealth health_;
  RunnerHolder self_{std::string(32, 'a'), "host", "boot", 1};
  std::vector<std::pair<RunNumber, std::uint64_t>> renewed_;
  std::vector<RunNumber> stale_, cancelled_;
  std::vector<std::string> lost_;
  LeaseKeeper keeper_{*store_,
                      clock_,
                      health_,
                      settings(),
                      self_,
                      {.on_renewed = [this](RunNumber run, std::uint64_t fence) { renewed_.emplace_back(run, fence); },
                       .on_stale = [this](RunNumber run) { stale_.push_back(run); },
                       .on_cancelled = [this](RunNumber run) { cancelled_.push_back(run); },
                       .on_runner_lost = [this](const std::string& reason) { lost_.push_back(reason); }}};
};

// Two heartbeats can fail before a lease ends.
TEST_F(LeaseKeeperTest, HeartbeatsAreSentThreeTimesALease) {
  claim(1);
  EXPECT_EQ(keeper_.run_once(), kLeaseMs / 3);
  EXPECT_THAT(stale_, IsEmpty());
}

// The lease in the store begins after the request was sent at the earliest. A run that counted from the answer could
// outlive it, and another agent would run the same job.
TEST_F(LeaseKeeperTest, FenceCountsFromTheRequestNotFromItsAnswer) {
  claim(1);
  delay_answers(4000);
  const std::uint64_t sent_ms = clock_.boot_ms();
  keeper_.run_once();
  EXPECT_THAT(renewed_, ElementsAre(std::pair{RunNumber{1}, compute_fence_boot_ms(sent_ms, kLeaseMs)}));
  EXPECT_LT(renewed_.at(0).second, sent_ms + kLeaseMs) << "the fence is before the end of the lease";
}

TEST_F(LeaseKeeperTest, FailedHeartbeatIsRepeatedSoon) {
  claim(1);
  server_.set_faults([](const ServerCall& call) { return call.name == "renew" ? Fault::before : Fault::none; });
  const std::uint64_t pause = keeper_.run_once();
  EXPECT_EQ(pause, static_cast<std::uint64_t>(retry_pause_ms(1)));
  EXPECT_THAT(renewed_, IsEmpty());
  EXPECT_THAT(stale_, IsEmpty()) << "an unavailable store does not make the lease stale";
  server_.set_faults({});
  clock_.advance(pause);
  EXPECT_EQ(keeper_.run_once(), kLeaseMs / 3);
  EXPECT_THAT(renewed_, ElementsAre(std::pair{RunNumber{1}, compute_fence_boot_ms(clock_.boot_ms(), kLeaseMs)}));
}

TEST_F(LeaseKeeperTest, RunReceivesCancellationAndALostClaim) {
  const ClaimRef first = claim(1);
  ASSERT_TRUE(store_->cancel(1, first.job_key));
  keeper_.run_once();
  EXPECT_THAT(cancelled_, ElementsAre(1));
  EXPECT_EQ(renewed_.size(), 1U) << "the lease is renewed until the run has ended";
  server_.erase(1, "mj:claim:" + first.job_key);
  keeper_.run_once();
  EXPECT_THAT(stale_, ElementsAre(1));
  EXPECT_EQ(renewed_.size(), 1U);
}

TEST_F(LeaseKeeperTest, RemovedRunsAreNotRenewed) {
  claim(1);
  claim(2);
  EXPECT_EQ(keeper_.count_leases(), (std::map<Id, std::size_t>{{1, 2}}));
  const RunNumber first = 1;
  keeper_.remove({&first, 1});
  keeper_.run_once();
  ASSERT_EQ(renewed_.size(), 1U);
  EXPECT_EQ(renewed_[0].first, 2U);
}

TEST_F(LeaseKeeperTest, AnotherHolderOfTheRunnersIdIsReported) {
  RunnerHolder other = self_, held_by;
  other.instance = std::string(32, 'b');
  ASSERT_TRUE(store_->hold_runner(1, make_runner_record(settings(), 1), other, kLeaseMs, "", held_by));
  EXPECT_EQ(keeper_.run_once(), kLeaseMs / 3) << "after an answer, the normal interval applies";
  EXPECT_EQ(lost_.size(), 1U);
}

}  // namespace
}  // namespace mycojobs::test
