// Messages on a topic, and holders of a runner.
#include <gmock/gmock.h>

#include "model/codec.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Topic : public StoreContract {
 protected:
  static constexpr const char* kKey = "message:12:101";
  static constexpr const char *kQueue = "mj:queue:runner20", *kList = "mj:topic:runner20";
  static Message message(std::vector<Job> jobs) {
    Message out;
    out.id = 101;
    out.caller_id = 12;
    out.context_id = 1;
    out.job = std::move(jobs);
    return out;
  }
  void send(std::vector<Job> jobs) {
    ASSERT_TRUE(store_->send_to_topic(1, "runner20", kKey, encode(message(std::move(jobs)))));
  }
  Result<AcceptedMessage> take(const std::vector<Job>& jobs) {
    AcceptMessage wanted{kList, kKey, {}};
    for (const Job& job : jobs) wanted.jobs.push_back({job, kQueue});
    return store_->accept_message(1, wanted);
  }
  std::vector<ClaimedJob> claim_here() {
    ClaimRequest own = request(10);
    own.queues = {kQueue};
    return store_->claim(own).value().jobs;
  }
  std::vector<std::string> pending() { return store_->topic_pending(1, "runner20").value(); }
};

TEST_P(Topic, MessageWaitsUntilItIsTaken) {
  send({job(1)});
  send({job(1)});  // sends the same message again
  EXPECT_THAT(pending(), ElementsAre(kKey));
  EXPECT_EQ(outcome(store_->send_to_topic(1, "runner20", kKey, encode(message({job(1, "other")})))), "conflict");
}

TEST_P(Topic, JobThatFailedBeforeCountsInTheEndOfItsMessage) {
  submit(1);
  JobEnd failure;
  failure.detail = "exception";
  ASSERT_EQ(outcome(end(claim_one().ref, failure)), "ok");
  send({job(1), job(2)});
  ASSERT_EQ(outcome(take({job(1), job(2)})), "ok");
  const auto claimed = claim_here();
  ASSERT_EQ(claimed.size(), 1U);
  EXPECT_EQ(outcome(end(claimed[0].ref, finished())), "ok");
  EXPECT_EQ(field(kKey, "status"), "error");
  EXPECT_EQ(field(kKey, "error"), "1 of its jobs failed");
}

// Without the mark, the message could be delivered a second time.
TEST_P(Topic, MarkOfARetiredMessageStaysUntilNoRetryIsPossible) {
  const std::string fresh = std::to_string(store_->now_ms().value() + 3600000);
  backend_->run_command(1, {"HSET", kKey, "id", "101"});
  backend_->run_command(1, {"HSET", "mj:message:message:12:101", "state", "over", "left", "0", "fresh_until", fresh});
  backend_->run_command(1, {"ZADD", "mj:messages", "1", kKey});
  EXPECT_EQ(store_->retire_messages(1, 1, 10).value(), 0U);
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", kKey}).number(), 0U);
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:message:message:12:101"}).number(), 1U);
  backend_->run_command(1, {"HDEL", "mj:message:message:12:101", "fresh_until"});
  backend_->run_command(1, {"ZADD", "mj:messages", "1", kKey});
  EXPECT_EQ(store_->retire_messages(1, 1, 10).value(), 1U);
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:message:message:12:101"}).number(), 0U);
}

// Every client can push a key that does not exist.
TEST_P(Topic, KeysWithoutARecordLeaveTheList) {
  for (int i = 0; i < 900; ++i) backend_->push(1, "mj:topic:runner20", "message:12:" + std::to_string(5000 + i));
  backend_->push(1, "mj:topic:runner20", "nonsense");
  send({job(1)});
  EXPECT_THAT(pending(), ElementsAre(kKey));
  EXPECT_EQ(backend_->run_command(1, {"LLEN", "mj:topic:runner20"}).number(), 1U);
  ASSERT_TRUE(store_->save(1, "message:12:5001", {{"id", "5001"}}));
  EXPECT_THAT(pending(), ElementsAre("message:12:5001", kKey)) << "the record was written later";
  ASSERT_TRUE(eventually([&] {
    (void)pending();
    return backend_->run_command(1, {"EXISTS", "mj:topic-missing-records:runner20"}).number() == 0;
  }));
}

TEST_P(Topic, ConsumedMessageCreatesItsJobsOnce) {
  send({job(1), job(2)});
  const auto accepted = take({job(1), job(2)}).value();
  EXPECT_FALSE(accepted.repeated);
  EXPECT_THAT(accepted.job_keys, ElementsAre("job:12:1", "job:12:2"));
  EXPECT_EQ(field(kKey, "status"), "acknowledged");
  EXPECT_TRUE(pending().empty());
  EXPECT_TRUE(take({job(1), job(2)}).value().repeated);
  EXPECT_EQ(store_->queue_length(1, kQueue).value(), 2U);
  const auto jobs = claim_here();
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(field("job:12:1", "id"), "1");
  ASSERT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  EXPECT_EQ(field(kKey, "status"), "acknowledged");
  ASSERT_EQ(outcome(end(jobs[1].ref, finished())), "ok");
  ASSERT_EQ(outcome(end(jobs[1].ref, finished())), "ok");
  EXPECT_EQ(field(kKey, "status"), "processed");
}

TEST_P(Topic, FailedJobMakesItsMessageAnError) {
  send({job(1), job(2)});
  ASSERT_TRUE(take({job(1), job(2)}));
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  const auto jobs = claim_here();
  ASSERT_EQ(jobs.size(), 1U);
  ASSERT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  EXPECT_EQ(field(kKey, "status"), "error");
  EXPECT_THAT(field(kKey, "error"), HasSubstr("1 of its jobs failed"));
}

TEST_P(Topic, JobWithOtherContentRejectsTheWholeMessage) {
  ASSERT_TRUE(store_->submit(job(2, "print('first')")));
  send({job(1), job(2)});
  EXPECT_EQ(outcome(take({job(1), job(2)})), "conflict");
  EXPECT_EQ(outcome(store_->load(1, "job:12:1")), "not_found");
  EXPECT_THAT(pending(), ElementsAre(kKey));
  ASSERT_TRUE(store_->close_message(1, kList, kKey, "job 2 has other content"));
  EXPECT_EQ(field(kKey, "status"), "error");
  EXPECT_EQ(field(kKey, "error"), "job 2 has other content");
  EXPECT_TRUE(pending().empty());
  EXPECT_TRUE(take({job(1)}).value().repeated);
}

TEST_P(Topic, ExistingJobWithTheSameContentIsUsed) {
  ASSERT_TRUE(store_->save(1, "job:12:1",
                           {{"id", "1"},
                            {"caller_id", "12"},
                            {"context_id", "1"},
                            {"script", "print(1)"},
                            {"script_type", "python"},
                            {"kept", "yes"}}));
  send({job(1)});
  EXPECT_FALSE(take({job(1)}).value().repeated);
  const auto jobs = claim_here();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(field("job:12:1", "kept"), "yes");
  ASSERT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  EXPECT_EQ(field(kKey, "status"), "processed");
}

TEST_P(Topic, MessageWithEndedJobsIsProcessedAtOnce) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  send({job(1)});
  ASSERT_TRUE(take({job(1)}));
  EXPECT_EQ(field(kKey, "status"), "processed");
  EXPECT_TRUE(claim_here().empty());
}

TEST_P(Topic, InvalidMessagesAreRejected) {
  EXPECT_EQ(outcome(take({job(1)})), "not_found");
  EXPECT_EQ(outcome(store_->close_message(1, kList, kKey, "x")), "not_found");
  backend_->put_text(1, kKey, "x");
  EXPECT_EQ(outcome(take({job(1)})), "invalid");
  backend_->erase(1, kKey);
  send({job(1), job(1)});
  EXPECT_EQ(outcome(take({job(1), job(1)})), "conflict");
  EXPECT_EQ(outcome(take({job(0)})), "invalid");
  EXPECT_EQ(outcome(store_->load(1, "job:12:1")), "not_found");
}

TEST_P(Topic, RejectingAConsumedMessageChangesNothing) {
  send({job(1)});
  ASSERT_TRUE(take({job(1)}));
  ASSERT_TRUE(store_->close_message(1, kList, kKey, "late"));
  EXPECT_EQ(field(kKey, "status"), "acknowledged");
}

class Hold : public StoreContract {
 protected:
  Runner runner_ = [] {
    Runner out;
    out.id = 20;
    out.topic = "runner20";
    out.slots = 4;
    return out;
  }();
  RunnerHolder self_{"aaaa", "host-a", "boot-a", 100};
  RunnerHolder other_{"bbbb", "host-b", "boot-b", 200};
  RunnerHolder held_by_;
};

TEST_P(Hold, WritesTheRunnersRecord) {
  ASSERT_TRUE(store_->hold_runner(1, runner_, self_, 60000, "", held_by_));
  ASSERT_TRUE(store_->hold_runner(1, runner_, self_, 60000, "", held_by_));
  EXPECT_EQ(field("runner:20", "topic"), "runner20");
  EXPECT_EQ(field("runner:20", "slots"), "4");
  EXPECT_NE(field("runner:20", "seen_ms"), "");
  EXPECT_NE(field("runner:20", "created_at"), "");
}

TEST_P(Hold, SecondInstanceSeesTheHolder) {
  ASSERT_TRUE(store_->hold_runner(1, runner_, self_, 60000, "", held_by_));
  const auto refused = store_->hold_runner(1, runner_, other_, 60000, "", held_by_);
  EXPECT_EQ(outcome(refused), "conflict");
  EXPECT_EQ(held_by_.instance, "aaaa");
  EXPECT_EQ(held_by_.host, "host-a");
  EXPECT_EQ(held_by_.boot_id, "boot-a");
  EXPECT_EQ(held_by_.pid, 100);
  EXPECT_EQ(outcome(store_->hold_runner(1, runner_, other_, 60000, "aaaa", held_by_)), "ok");
  EXPECT_EQ(outcome(store_->hold_runner(1, runner_, self_, 60000, "", held_by_)), "conflict");
}

TEST_P(Hold, Expires) {
  ASSERT_TRUE(store_->hold_runner(1, runner_, self_, 1, "", held_by_));
  EXPECT_TRUE(eventually([&] { return store_->hold_runner(1, runner_, other_, 60000, "", held_by_).has_value(); }));
}

TEST_P(Hold, OnlyTheHolderReleasesIt) {
  ASSERT_TRUE(store_->hold_runner(1, runner_, self_, 60000, "", held_by_));
  ASSERT_TRUE(store_->release_runner(1, 20, other_));
  EXPECT_EQ(outcome(store_->hold_runner(1, runner_, other_, 60000, "", held_by_)), "conflict");
  ASSERT_TRUE(store_->release_runner(1, 20, self_));
  EXPECT_EQ(outcome(store_->hold_runner(1, runner_, other_, 60000, "", held_by_)), "ok");
}

MJ_BOTH_STORES(Topic);
MJ_BOTH_STORES(Hold);

}  // namespace
}  // namespace mycojobs
