// Jobs that wait for the runner that has the artifacts of their inputs.
#include <gmock/gmock.h>

#include <algorithm>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class AwaitedInputs : public StoreContract {
 protected:
  static constexpr Id kHolder = 30;

  void hold_runner(const std::string& instance = "aaaa") {
    Runner runner;
    runner.id = kHolder;
    RunnerHolder holder;
    ASSERT_TRUE(store_->hold_runner(1, runner, {instance, "host", "boot", 1}, 60000, "", holder));
  }
  void end_runner() { ASSERT_TRUE(store_->release_runner(1, kHolder, {"aaaa", "host", "boot", 1})); }
  void run_first_job() {
    submit(1);
    EXPECT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  }
  // Submits a job that needs the artifacts of job 1.
  void submit_dependent(
      Id id = 2, std::vector<Id> dependencies = {1}, const std::function<void(Job&)>& change = [](Job&) {}) {
    Job dependent = job(id);
    dependent.dependends = std::move(dependencies);
    dependent.inputs = {"1"};
    change(dependent);
    EXPECT_TRUE(store_->submit(dependent));
  }
  // Job 1 has ended; job 2, which needs its artifacts, is claimed.
  ClaimedJob claim_dependent(const std::function<void(Job&)>& change = [](Job&) {}) {
    run_first_job();
    submit_dependent(2, {1}, change);
    return claim_one();
  }
  AwaitInputs make_wait(const ClaimedJob& claimed, std::uint64_t timeout_ms = 3600000) {
    return {claimed.ref, kHolder, timeout_ms, "runner 30 is not connected", {"job:12:1"}};
  }
  std::string claim_field(const std::string& name, const std::string& job_key = "job:12:2") {
    return std::string(backend_->run_command(1, {"HGET", "mj:claim:" + job_key, name}).text());
  }
  void make_due() { backend_->run_command(1, {"ZADD", "mj:delayed", "1", "job:12:2"}); }
  TickReply tick(TickRequest request = {}) {
    auto reply = store_->tick(1, request);
    EXPECT_TRUE(reply.has_value()) << reply.error().message;
    return reply.value_or(TickReply{});
  }
};

TEST_P(AwaitedInputs, JobIsParkedWithoutLeaseOrDelivery) {
  hold_runner();
  const ClaimedJob claimed = claim_dependent();
  ASSERT_EQ(outcome(report(make_wait(claimed))), "ok");
  EXPECT_EQ(outcome(report(make_wait(claimed))), "ok") << "a repeat has no effect";
  EXPECT_EQ(field("job:12:2", "status"), "dispatched");
  EXPECT_EQ(field("job:12:2", "detail"), "inputs");
  EXPECT_EQ(field("job:12:2", "deliveries"), "0");
  EXPECT_EQ(claim_field("state"), "delayed");
  EXPECT_EQ(claim_field("holder"), "30");
  EXPECT_TRUE(store_->leases(1).value().empty());
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "stale_claim");
}

TEST_P(AwaitedInputs, JobIsQueuedWhenTheRunnerIsAlive) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent()))), "ok");
  end_runner();
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_since", "1000"});
  make_due();
  EXPECT_EQ(tick().queued, 0U);
  EXPECT_EQ(field("job:12:2", "detail"), "inputs");
  hold_runner("bbbb");
  make_due();
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_EQ(claim_field("holder"), "") << "the runner is back";
  EXPECT_EQ(claim_field("holder_since"), "");
  const ClaimedJob claimed = claim_one();
  EXPECT_EQ(claimed.ref.job_key, "job:12:2");
  EXPECT_EQ(claimed.deliveries, 1U);
  ASSERT_EQ(outcome(report(make_wait(claimed))), "ok");
  EXPECT_GT(std::stoull(claim_field("holder_since")), 1000U) << "a new wait";
  make_due();
  EXPECT_EQ(tick().queued, 1U);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_EQ(claim_field("holder"), "");
}

TEST_P(AwaitedInputs, FilesInAnObjectStorageAreRequestedWithoutTheRunner) {
  AwaitInputs wait = make_wait(claim_dependent());
  wait.is_stored = true;
  ASSERT_EQ(outcome(report(wait)), "ok");
  EXPECT_EQ(claim_field("holder_stored"), "1");
  EXPECT_EQ(claim_field("holder_away"), "");
  make_due();
  EXPECT_EQ(tick().queued, 1U) << "the storage may be back before the runner, which was deleted";
  wait = make_wait(claim_one());
  wait.is_stored = true;
  ASSERT_EQ(outcome(report(wait)), "ok");
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_until", "1"});
  make_due();
  EXPECT_EQ(tick().queued, 0U);
  EXPECT_EQ(field("job:12:2", "detail"), "artifact_lost");
  EXPECT_EQ(claim_field("holder_stored"), "");
}

TEST_P(AwaitedInputs, RunnersThatAreAwayInTurnBeginOneWait) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent(), 100000))), "ok");
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_since", "1000"});
  make_due();
  EXPECT_EQ(tick().queued, 1U);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_queued", "3000"});
  AwaitInputs wait = make_wait(claim_one(), 100000);
  wait.holder = 31;
  const std::uint64_t before_ms = *store_->now_ms();
  ASSERT_EQ(outcome(report(wait)), "ok");
  EXPECT_EQ(claim_field("holder"), "31");
  const std::uint64_t since_ms = std::stoull(claim_field("holder_since"));
  EXPECT_GE(since_ms, before_ms - 2000) << "without the time in the queue";
  EXPECT_LE(since_ms, *store_->now_ms() - 2000) << "with the first wait";
}

TEST_P(AwaitedInputs, OnlyTheWaitForInputsEndsAtItsTimeLimit) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent()))), "ok");
  make_due();
  EXPECT_EQ(tick().queued, 1U);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_until", "1"});
  backend_->run_command(1, {"HSET", "job:12:2", "run_at_ms", std::to_string(*store_->now_ms() + 60000)});
  EXPECT_TRUE(claim().empty());
  ASSERT_EQ(claim_field("state"), "delayed");
  make_due();
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_NE(field("job:12:2", "detail"), "artifact_lost");
}

TEST_P(AwaitedInputs, JobEndsWhenTheRunnerIsDeleted) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent()))), "ok");
  backend_->erase(1, "runner:30");
  make_due();
  tick();
  EXPECT_EQ(field("job:12:2", "status"), "error");
  EXPECT_EQ(field("job:12:2", "detail"), "artifact_lost");
  EXPECT_THAT(field("job:12:2", "error"), HasSubstr("runner 30, which was deleted: run the jobs"));
}

TEST_P(AwaitedInputs, JobEndsAfterTheTimeLimit) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent(), 60000))), "ok");
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_until", "1"});
  make_due();
  tick();
  EXPECT_EQ(field("job:12:2", "detail"), "artifact_lost");
  EXPECT_THAT(field("job:12:2", "error"), HasSubstr("artifacts.holder_timeout"));
}

// The record names no runner, and the object storage does not answer.
TEST_P(AwaitedInputs, WaitForAnObjectStorageAloneIsLimited) {
  const auto make_storage_wait = [this](const ClaimedJob& claimed) {
    AwaitInputs wait = make_wait(claimed, 60000);
    wait.holder = FileHolder();
    wait.is_stored = true;
    return wait;
  };
  ASSERT_EQ(outcome(report(make_storage_wait(claim_dependent()))), "ok");
  EXPECT_EQ(claim_field("state"), "delayed");
  make_due();
  EXPECT_EQ(tick().queued, 1U) << "the storage may answer again";
  ASSERT_EQ(outcome(report(make_storage_wait(claim_one()))), "ok");
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "holder_until", "1"});
  make_due();
  tick();
  EXPECT_EQ(field("job:12:2", "detail"), "artifact_lost");
  EXPECT_THAT(field("job:12:2", "error"), HasSubstr("artifacts in an object storage, which did not send them for"));
}

TEST_P(AwaitedInputs, QueueTimeoutApplies) {
  hold_runner();
  const ClaimedJob claimed = claim_dependent([](Job& dependent) { dependent.queue_timeout_ms = 60000; });
  ASSERT_EQ(outcome(report(make_wait(claimed))), "ok");
  EXPECT_EQ(backend_->run_command(1, {"ZCARD", "mj:queue-deadlines"}).number(), 1U);
  backend_->run_command(1, {"ZADD", "mj:queue-deadlines", "1", "job:12:2"});
  tick();
  EXPECT_EQ(field("job:12:2", "detail"), "timeout");
}

TEST_P(AwaitedInputs, CancelledJobEnds) {
  hold_runner();
  const ClaimedJob claimed = claim_dependent();
  ASSERT_TRUE(store_->cancel(1, "job:12:2"));
  ASSERT_EQ(outcome(report(make_wait(claimed))), "ok");
  EXPECT_EQ(field("job:12:2", "detail"), "cancelled");
}

TEST_P(AwaitedInputs, RetentionKeepsNeededArtifacts) {
  hold_runner();
  ASSERT_EQ(outcome(report(make_wait(claim_dependent()))), "ok");
  EXPECT_EQ(claim_field("needed_by", "job:12:1"), "job:12:2");
  TickRequest request;
  request.retention = Retention::same_for_all(1);
  ASSERT_TRUE(eventually([&] { return *store_->now_ms() > std::stoull(field("job:12:1", "ended_ms")) + 1; }));
  EXPECT_EQ(tick(request).retired, 0U);
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  ASSERT_TRUE(store_->cancel(1, "job:12:2"));
  backend_->run_command(1, {"ZADD", "mj:ended", "1", "job:12:1"});
  EXPECT_TRUE(eventually([&] { return tick(request).retired > 0 || field("job:12:1", "status").empty(); }));
}

TEST_P(AwaitedInputs, RetentionKeepsArtifactsWhileAnotherDependencyRuns) {
  submit(1);
  submit(3);
  submit_dependent(2, {1, 3});
  for (const ClaimedJob& claimed : claim(3)) {
    if (claimed.ref.job_key != "job:12:1") continue;
    ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  }
  EXPECT_EQ(claim_field("needed_by", "job:12:1"), "job:12:2");
}

TEST_P(AwaitedInputs, RetentionKeepsArtifactsOfQueuedAndRunningJobs) {
  run_first_job();
  submit_dependent();
  EXPECT_EQ(claim_field("needed_by", "job:12:1"), "job:12:2");
  TickRequest request;
  request.retention = Retention::same_for_all(1);
  ASSERT_TRUE(eventually([&] { return *store_->now_ms() > std::stoull(field("job:12:1", "ended_ms")) + 1; }));
  EXPECT_EQ(tick(request).retired, 0U);
  const ClaimedJob claimed = claim_one();
  backend_->run_command(1, {"ZADD", "mj:ended", "1", "job:12:1"});
  EXPECT_EQ(tick(request).retired, 0U);
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  backend_->run_command(1, {"ZADD", "mj:ended", "1", "job:12:1"});
  EXPECT_TRUE(eventually([&] { return tick(request).retired > 0 || field("job:12:1", "status").empty(); }));
}

// Other clients push jobs without listing them.
TEST_P(AwaitedInputs, ClaimListsTheJob) {
  run_first_job();
  submit_dependent();
  backend_->run_command(1, {"HDEL", "mj:claim:job:12:1", "needed_by"});
  EXPECT_EQ(claim_one().ref.job_key, "job:12:2");
  EXPECT_EQ(claim_field("needed_by", "job:12:1"), "job:12:2");
}

TEST_P(AwaitedInputs, AllJobsThatHaveNotEndedAreListed) {
  run_first_job();
  for (Id id = 2; id < 42; ++id) {
    submit_dependent(id);
    if (id % 2 == 0) {
      ASSERT_TRUE(store_->cancel(1, "job:12:" + std::to_string(id)));
    }
  }
  const std::string listed = ' ' + claim_field("needed_by", "job:12:1") + ' ';
  for (Id id = 3; id < 42; id += 2) EXPECT_THAT(listed, HasSubstr(" job:12:" + std::to_string(id) + ' '));
  EXPECT_LT(std::count(listed.begin(), listed.end(), ' '), 30) << "ended jobs are removed: " << listed;
}

TEST_P(AwaitedInputs, MessagesAreReceivedBySubscribersOnly) {
  EXPECT_EQ(store_->publish_transfer(1, transfer_channel(1, 30U), "text").value(), 0U);
  EXPECT_EQ(transfer_channel(1, 30U), "mj:transfer:1:30");
  const std::string channel = transfer_channel(1, std::string(32, 'a'));
  EXPECT_TRUE(is_receiver_channel(1, channel));
  EXPECT_FALSE(is_receiver_channel(2, channel));
  EXPECT_FALSE(is_receiver_channel(1, transfer_channel(1, 30U)));
}

MJ_BOTH_STORES(AwaitedInputs);

}  // namespace
}  // namespace mycojobs
