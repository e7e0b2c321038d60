// A plain client plants each kind of violation. Only that violation is found, and a rebuild repairs it if facts permit.
#include "contract/verify_scenario.h"
#include "inspect/verify/job_verify.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class Planted : public VerifyContract {
 protected:
  void SetUp() override {
    VerifyContract::SetUp();
    play();
  }
  std::string claim_id(Id id) { return std::string(plain({"HGET", claim_key(id), "claim_id"}).text()); }
  std::string epoch(Id id) { return std::string(plain({"HGET", claim_key(id), "epoch"}).text()); }
  void route_message_of_job() {
    ASSERT_TRUE(store_->save(1, "message:12:5", {{"id", "5"}, {"caller_id", "12"}}));
    ASSERT_TRUE(store_->route_message(1, {"message:12:5", {"c0ffee", {}}, 60000, 60000, {{job(50), "queue:python"}}}));
  }
  void come_in() {
    const MessageState mark{"c0ffee", {{"answer", "wanted"}, {"stream", "1"}}};
    ASSERT_EQ(store_->receive_message(1, "message:12:5", mark, {{"id", "5"}, {"caller_id", "12"}}).value(),
              Arrival::stored);
  }
  void delete_fact(std::uint64_t revision) {
    plain({"XDEL", "mj:journal:queue:python", std::to_string(revision) + "-0"});
  }
};

TEST_P(Planted, FindsAQueuedJobInNoQueue) {
  plain({"LREM", "queue:python", "0", key(1)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAPrioritisedJobInNoQueue) {
  plain({"ZREM", "mj:priority:queue:python", key(16)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsADelayedJobOutOfItsIndex) {
  plain({"ZREM", "mj:delayed", key(4)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsARetryOutOfItsIndex) {
  plain({"ZREM", "mj:delayed", key(9)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAWaitingJobThatWaitsForNothing) {
  plain({"DEL", "mj:waits:" + key(5)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAJobWithoutAPrerequisiteCheck) {
  plain({"ZREM", "mj:prerequisites", key(6)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAHeldJobWithoutItsEntry) {
  plain({"DEL", "mj:held:db"});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAnEndedJobMissingFromRetention) {
  plain({"ZREM", "mj:ended", key(3)});
  expect_found("no-place", true);
}
TEST_P(Planted, FindsAJobMissingFromTheJobList) {
  plain({"ZREM", "mj:jobs", key(2), key(3)});
  expect_found("not-listed", true);
}
TEST_P(Planted, FindsAMissingJobList) {
  plain({"DEL", "mj:jobs"});
  expect_found("not-listed", true);
}
TEST_P(Planted, FindsAJobInTwoIndexes) {
  plain({"ZADD", "mj:delayed", "4102444800000", key(1)});
  expect_found("two-places", true);
}
TEST_P(Planted, FindsALiveJobAmongTheEnded) {
  plain({"ZADD", "mj:ended", "5", key(2)});
  expect_found("two-places", true);
}
TEST_P(Planted, FindsALeaseWithoutAClaim) {
  plain({"ZADD", "mj:leases", "4102444800000", "job:12:77"});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseOfAnEndedJob) {
  plain({"ZADD", "mj:leases", "4102444800000", key(3)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALiveClaimWithoutItsLease) {
  plain({"ZREM", "mj:leases", key(2)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseThatIsIndexedWrongly) {
  plain({"ZADD", "mj:leases", "4102444800000", key(2)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseMissingFromRecovery) {
  set_claim(2, "until_ms", "5000");
  plain({"ZADD", "mj:leases", "5000", key(2)});
  EXPECT_EQ(rules(), std::set<std::string>{"lease-overdue"});
  ASSERT_TRUE(expire(key(2)));  // an agent recovers the job, not a rebuild
  EXPECT_EQ(rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsADeletedClaim) {
  plain({"DEL", claim_key(2)});
  expect_found("claim-missing", true);
}
TEST_P(Planted, FindsTheDeletedClaimOfAnEndedJob) {
  plain({"DEL", claim_key(3)});
  expect_found("claim-missing", true);
}
TEST_P(Planted, FindsAnInvalidClaim) {
  plain({"DEL", claim_key(3)});
  bench_->put_text(1, claim_key(3), "mine");
  expect_found("claim-type", true);
}
TEST_P(Planted, FindsALowerEpoch) {
  set_claim(2, "epoch", "7");
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsAnEndedJobSetBackToQueued) {
  set_claim(3, "state", "queued");
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsALiveJobThatAClientEnded) {
  set_claim(2, "state", "ended");
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsAnUnknownState) {
  set_claim(1, "state", "lost");
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsAClaimOfAJobThatWasNeverClaimed) {
  set_claim(1, "claim_id", "forged");
  set_claim(1, "token", "forged");
  set_claim(1, "epoch", "7");
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsForgedCountsAndTokens) {
  set_claim(10, "deliveries", "0");
  EXPECT_EQ(rules(), std::set<std::string>{"claim-facts"});
  set_claim(9, "attempt", "1");
  set_claim(2, "token", "0000");
  set_claim(3, "end", "0000");
  const auto report = verified();
  EXPECT_EQ(report.findings.size(), 4U);
  for (const Finding& each : report.findings) EXPECT_THAT(each.text, testing::Not(HasSubstr("0000 ")));
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsASecondEnd) {
  add_fact(3, {"cancelled", "detail", "cancelled"});
  expect_found("second-end", true);
}
TEST_P(Planted, FindsAFactAfterTheEnd) {
  add_fact(3, {"heartbeat", "c", claim_id(3)});
  expect_found("fact-after-end", true);
}
TEST_P(Planted, FindsACompletionByAnotherClaim) {
  add_fact(2, {"completed", "c", "forged", "e", epoch(2), "g", "digest"});
  expect_found("fact-claim", true);
}
TEST_P(Planted, FindsACompletionWithALowerEpoch) {
  add_fact(2, {"completed", "c", claim_id(2), "e", "7", "g", "digest"});
  expect_found("fact-epoch", true);
}
TEST_P(Planted, FindsAClaimWhileOneIsLive) {
  add_fact(2, {"claimed", "c", "x", "t", "h", "e", "9007199254740991", "a", "1", "d", "2", "r", "20", "l", "1"});
  expect_found("fact-order", true);
}
TEST_P(Planted, FindsACorruptFact) {
  add_fact(2, {"heartbeat"});
  expect_found("fact-field", true);
}
TEST_P(Planted, FindsAFactOfNoKind) {
  add_fact(2, {"exploded", "c", claim_id(2)});
  expect_found("fact-kind", true);
}
TEST_P(Planted, FindsInconsistentDeliveries) {
  add_fact(10, {"claimed", "c", "x", "t", "h", "e", "9007199254740991", "a", "1", "d", "9", "r", "20", "l", "1"});
  expect_found("fact-count", true);
}
TEST_P(Planted, FindsAFactThatNamesNoJob) {
  plain({"XADD", "mj:journal:queue:python", "100000-0", "colour", "red"});
  expect_found("fact-field", false);
}
TEST_P(Planted, FindsAFactThatIsNotListed) {
  add_fact(2, {"heartbeat", "c", claim_id(2)}, false);
  expect_found("fact-unlisted", true);
}
TEST_P(Planted, FindsAListOfForeignFacts) {
  const std::string revisions(plain({"HGET", claim_key(2), "revs"}).text());
  set_claim(2, "revs", revisions + ' ' + std::to_string(last_revision(3)));
  expect_found("claim-facts", true);
}
TEST_P(Planted, FindsADeletedFact) {
  delete_fact(last_revision(20));
  expect_found("fact-missing", true);
}
TEST_P(Planted, FindsADeletedEndThatARebuildDoesNotReopen) {
  delete_fact(last_revision(3));
  expect_found("fact-missing", true);
  EXPECT_EQ(field(key(3), "status"), "finished");
}
TEST_P(Planted, FindsAFactInAnotherQueue) {
  plain({"XADD", "mj:journal:queue:v", "1-0", "f", "heartbeat", "j", key(2), "at", "5", "c", claim_id(2)});
  plain({"SADD", "mj:queues", "queue:v"});
  expect_found("fact-elsewhere", false);
}
TEST_P(Planted, FindsAnUnusedSlot) {
  plain({"SADD", "mj:running:db", key(8)});
  EXPECT_THAT(rules(), testing::Contains("slot-stray"));
  differences();
  EXPECT_EQ(rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsALiveJobWithoutItsSlot) {
  plain({"SREM", "mj:running:db", key(7)});
  EXPECT_THAT(rules(), testing::IsSupersetOf({"slot-missing", "held-free"}));
  differences();
  EXPECT_EQ(rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsAHeldJobWithAFreeSlot) {
  ASSERT_EQ(outcome(end(claimed_[7].ref, finished())), "ok");
  ASSERT_EQ(rules(), std::set<std::string>{});
  claimed_.clear();
  submit(30);
  plain({"HSET", key(30), "concurrency_key", "tape"});
  plain({"SADD", "mj:running:tape", "job:12:99"});
  const auto got = claim(64);
  ASSERT_FALSE(got.empty());
  ASSERT_EQ(rules(), std::set<std::string>{"held-free"}) << "the slot is taken by a job that does not exist";
  plain({"SREM", "mj:running:tape", "job:12:99"});
  expect_found("held-free", true);
}
// The job is held under its old key even if its record has another key. The old key releases it.
TEST_P(Planted, AcceptsAHeldJobWithAnEditedKey) {
  for (const char* name : {"tape", ""}) {
    plain({"HSET", key(8), "concurrency_key", name});
    EXPECT_EQ(rules(), std::set<std::string>{}) << name;
    EXPECT_THAT(differences(), testing::IsEmpty()) << name;
  }
  ASSERT_EQ(outcome(end(claimed_[7].ref, finished())), "ok");
  EXPECT_EQ(rules(), std::set<std::string>{});
  EXPECT_EQ(std::string(plain({"HGET", claim_key(8), "state"}).text()), "queued");
}
TEST_P(Planted, FindsAnEditedKeyThatDoesNotHoldTheJob) {
  plain({"HSET", key(8), "concurrency_key", "tape"});
  plain({"SREM", "mj:running:db", key(7)});
  EXPECT_THAT(rules(), testing::IsSupersetOf({"slot-missing", "held-free"})) << "of db, which holds it";
  differences();
  EXPECT_EQ(rules(), std::set<std::string>{});
}
// The entry under the old key is lost, so the job is restored under the key in its record.
TEST_P(Planted, FindsAnUnheldJobWithAnEditedKey) {
  plain({"HSET", key(8), "concurrency_key", "tape"});
  plain({"SADD", "mj:running:tape", "job:12:99"});
  plain({"DEL", "mj:held:db"});
  EXPECT_THAT(rules(), testing::Contains("no-place"));
  differences();
  EXPECT_THAT(rules(), testing::Not(testing::Contains("no-place")));
}
TEST_P(Planted, FindsAJobThatWaitsForAnEndedJob) {
  plain({"SADD", "mj:waits:" + key(5), key(3)});
  expect_found("waiting-ended", true);
}
TEST_P(Planted, FindsALostWakeUp) {
  submit(31);
  plain({"HSET", key(31), "dependends", "[3]"});
  ASSERT_FALSE(claim(64).empty());  // job 3 has finished, so 31 runs
  EXPECT_EQ(rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsARecordWronglyMarkedStarted) {
  plain({"HSET", key(1), "status", "started"});
  expect_found("started-unclaimed", true);
}
TEST_P(Planted, FindsAHigherEpochOnTheRecord) {
  plain({"HSET", key(2), "epoch", "9007199254740991"});
  expect_found("record-epoch", false);
}
TEST_P(Planted, FindsAWrongMessageCounter) {
  plain({"HSET", "mj:message:message:9:1", "left", "4"});
  expect_found("message-count", false);
}

TEST_P(Planted, FindsAMessageThatCountsUnknownJobs) {
  plain({"HSET", "mj:message:message:9:7", "state", "taken", "left", "2", "taken_ms", "5"});
  expect_found("message-count", false);
}
TEST_P(Planted, FindsAnUnsentMessage) {
  route_message_of_job();
  plain({"ZREM", "mj:outbox", "send message:12:5"});
  expect_found("message-outbox", true);
  EXPECT_EQ(store_->due_mail(1, 10, 1000, false).value().out.size(), 1U);
}
TEST_P(Planted, FindsAMessageWithoutATimeoutEntry) {
  route_message_of_job();
  const OutboxEntry sent{"send message:12:5", "send", "message:12:5", {}};
  ASSERT_TRUE(store_->complete_delivery(1, sent, {MailResult::Kind::delivered, 0, "", ""}));
  plain({"ZREM", "mj:outbox", "expire message:12:5"});
  expect_found("message-outbox", true);
  EXPECT_TRUE(store_->due_mail(1, 10, 1000, false).value().out.empty()) << "its time has not come";
}
TEST_P(Planted, FindsAMessageThatIsNeverAccepted) {
  come_in();
  plain({"DEL", "mj:inbox"});
  expect_found("message-inbox", true);
  EXPECT_THAT(store_->due_mail(1, 10, 1000, false).value().arrived, testing::ElementsAre("message:12:5"));
}
TEST_P(Planted, FindsAMissingAnswer) {
  come_in();
  ASSERT_TRUE(store_->close_message(1, "msg_in", "message:12:5", "no"));
  plain({"DEL", "mj:outbox"});
  expect_found("message-outbox", true);
}
TEST_P(Planted, FindsUnsentLines) {
  come_in();
  ASSERT_TRUE(store_->accept_message(1, {"msg_in", "message:12:5", {{job(50), "queue:python"}}, 0, {"job:7:1"}}));
  plain({"ZREM", "mj:outbox", "logs message:12:5"});
  expect_found("message-outbox", true);
}
TEST_P(Planted, FindsAnInvalidOutbox) {
  route_message_of_job();
  plain({"DEL", "mj:outbox"});
  bench_->put_text(1, "mj:outbox", "mine");
  EXPECT_EQ(rules(), std::set<std::string>{"message-outbox"});
  EXPECT_THAT(differences(), testing::Contains(HasSubstr("cannot be repaired")));
  plain({"DEL", "mj:outbox"});
  differences();
  EXPECT_EQ(rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsAMissingJournal) {
  plain({"DEL", "mj:journal:queue:python"});
  expect_found("fact-missing", true);
}
TEST_P(Planted, FindsAnInvalidQueue) {
  plain({"DEL", "queue:python"});
  bench_->put_text(1, "queue:python", "mine");
  EXPECT_EQ(rules(), (std::set<std::string>{"no-place", "bare-unqueued", "queue-type"}));
  EXPECT_THAT(differences(), testing::Contains(HasSubstr("cannot be repaired"))) << "and the others are";
  plain({"DEL", "queue:python"});
  differences();
  EXPECT_EQ(rules(), std::set<std::string>{});
}

MJ_BOTH_STORES(Planted);

}  // namespace
}  // namespace mycojobs
