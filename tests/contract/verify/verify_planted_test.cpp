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
    create_scenario();
  }
  std::string claim_id(Id id) { return std::string(run_command({"HGET", claim_key(id), "claim_id"}).text()); }
  std::string epoch(Id id) { return std::string(run_command({"HGET", claim_key(id), "epoch"}).text()); }
  void route_job_message() {
    ASSERT_TRUE(store_->save(1, "message:12:5", {{"id", "5"}, {"caller_id", "12"}}));
    ASSERT_TRUE(store_->route_message(1, {"message:12:5", {"c0ffee", {}}, 60000, 60000, {{job(50), "queue:python"}}}));
  }
  void receive_job_message() {
    const MessageState mark{"c0ffee", {{"answer", "wanted"}, {"stream", "1"}}};
    ASSERT_EQ(store_->receive_message(1, "message:12:5", mark, {{"id", "5"}, {"caller_id", "12"}}).value(),
              Arrival::stored);
  }
  void delete_fact(std::uint64_t revision) {
    run_command({"XDEL", "mj:journal:queue:python", std::to_string(revision) + "-0"});
  }
};

TEST_P(Planted, FindsAQueuedJobInNoQueue) {
  run_command({"LREM", "queue:python", "0", key(1)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAPrioritisedJobInNoQueue) {
  run_command({"ZREM", "mj:priority:queue:python", key(16)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsADelayedJobOutOfItsIndex) {
  run_command({"ZREM", "mj:delayed", key(4)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsARetryOutOfItsIndex) {
  run_command({"ZREM", "mj:delayed", key(9)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAWaitingJobThatWaitsForNothing) {
  run_command({"DEL", "mj:dependencies:" + key(5)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAJobWithoutAPrerequisiteCheck) {
  run_command({"ZREM", "mj:prerequisites", key(6)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAHeldJobWithoutItsEntry) {
  run_command({"DEL", "mj:held:db"});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAnEndedJobMissingFromRetention) {
  run_command({"ZREM", "mj:ended", key(3)});
  expect_found("job-not-indexed", true);
}
TEST_P(Planted, FindsAJobMissingFromTheJobList) {
  run_command({"ZREM", "mj:jobs", key(2), key(3)});
  expect_found("job-not-listed", true);
}
TEST_P(Planted, FindsAMissingJobList) {
  run_command({"DEL", "mj:jobs"});
  expect_found("job-not-listed", true);
}
TEST_P(Planted, FindsAJobInTwoIndexes) {
  run_command({"ZADD", "mj:delayed", "4102444800000", key(1)});
  expect_found("job-indexed-twice", true);
}
TEST_P(Planted, FindsALiveJobAmongTheEnded) {
  run_command({"ZADD", "mj:ended", "5", key(2)});
  expect_found("job-indexed-twice", true);
}
TEST_P(Planted, FindsALeaseWithoutAClaim) {
  run_command({"ZADD", "mj:leases", "4102444800000", "job:12:77"});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseOfAnEndedJob) {
  run_command({"ZADD", "mj:leases", "4102444800000", key(3)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALiveClaimWithoutItsLease) {
  run_command({"ZREM", "mj:leases", key(2)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseThatIsIndexedWrongly) {
  run_command({"ZADD", "mj:leases", "4102444800000", key(2)});
  expect_found("lease-index", true);
}
TEST_P(Planted, FindsALeaseMissingFromRecovery) {
  set_claim(2, "until_ms", "5000");
  run_command({"ZADD", "mj:leases", "5000", key(2)});
  EXPECT_EQ(violated_rules(), std::set<std::string>{"lease-overdue"});
  ASSERT_TRUE(expire(key(2)));  // an agent recovers the job, not a rebuild
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsADeletedClaim) {
  run_command({"DEL", claim_key(2)});
  expect_found("claim-missing", true);
}
TEST_P(Planted, FindsTheDeletedClaimOfAnEndedJob) {
  run_command({"DEL", claim_key(3)});
  expect_found("claim-missing", true);
}
TEST_P(Planted, FindsAnInvalidClaim) {
  run_command({"DEL", claim_key(3)});
  backend_->put_text(1, claim_key(3), "mine");
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
  EXPECT_EQ(violated_rules(), std::set<std::string>{"claim-facts"});
  set_claim(9, "attempt", "1");
  set_claim(2, "token", "0000");
  set_claim(3, "end", "0000");
  const auto report = run_verify();
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
  run_command({"XADD", "mj:journal:queue:python", "100000-0", "colour", "red"});
  expect_found("fact-field", false);
}
TEST_P(Planted, FindsAFactThatIsNotListed) {
  add_fact(2, {"heartbeat", "c", claim_id(2)}, false);
  expect_found("fact-unlisted", true);
}
TEST_P(Planted, FindsAListOfForeignFacts) {
  const std::string revisions(run_command({"HGET", claim_key(2), "revs"}).text());
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
  run_command({"XADD", "mj:journal:queue:v", "1-0", "f", "heartbeat", "j", key(2), "at", "5", "c", claim_id(2)});
  run_command({"SADD", "mj:queues", "queue:v"});
  expect_found("fact-in-other-journal", false);
}
TEST_P(Planted, FindsAnUnusedSlot) {
  run_command({"SADD", "mj:running:db", key(8)});
  EXPECT_THAT(violated_rules(), testing::Contains("slot-stray"));
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsALiveJobWithoutItsSlot) {
  run_command({"SREM", "mj:running:db", key(7)});
  EXPECT_THAT(violated_rules(), testing::IsSupersetOf({"slot-missing", "held-with-free-slots"}));
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsAHeldJobWithAFreeSlot) {
  ASSERT_EQ(outcome(end(claimed_[7].ref, finished())), "ok");
  ASSERT_EQ(violated_rules(), std::set<std::string>{});
  claimed_.clear();
  submit(30);
  run_command({"HSET", key(30), "concurrency_key", "tape"});
  run_command({"SADD", "mj:running:tape", "job:12:99"});
  const auto claimed = claim(64);
  ASSERT_FALSE(claimed.empty());
  ASSERT_EQ(violated_rules(), std::set<std::string>{"held-with-free-slots"})
      << "the slot is taken by a job that does not exist";
  run_command({"SREM", "mj:running:tape", "job:12:99"});
  expect_found("held-with-free-slots", true);
}
// The job is held under its old key even if its record has another key. The old key releases it.
TEST_P(Planted, AcceptsAHeldJobWithAnEditedKey) {
  for (const char* name : {"tape", ""}) {
    run_command({"HSET", key(8), "concurrency_key", name});
    EXPECT_EQ(violated_rules(), std::set<std::string>{}) << name;
    EXPECT_THAT(run_rebuild(), testing::IsEmpty()) << name;
  }
  ASSERT_EQ(outcome(end(claimed_[7].ref, finished())), "ok");
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_EQ(std::string(run_command({"HGET", claim_key(8), "state"}).text()), "queued");
}
TEST_P(Planted, FindsAnEditedKeyThatDoesNotHoldTheJob) {
  run_command({"HSET", key(8), "concurrency_key", "tape"});
  run_command({"SREM", "mj:running:db", key(7)});
  EXPECT_THAT(violated_rules(), testing::IsSupersetOf({"slot-missing", "held-with-free-slots"}))
      << "job 8 is held by the key db, not by its new key";
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
// The entry under the old key is lost, so the job is restored under the key in its record.
TEST_P(Planted, FindsAnUnheldJobWithAnEditedKey) {
  run_command({"HSET", key(8), "concurrency_key", "tape"});
  run_command({"SADD", "mj:running:tape", "job:12:99"});
  run_command({"DEL", "mj:held:db"});
  EXPECT_THAT(violated_rules(), testing::Contains("job-not-indexed"));
  run_rebuild();
  EXPECT_THAT(violated_rules(), testing::Not(testing::Contains("job-not-indexed")));
}
TEST_P(Planted, FindsAJobThatWaitsForAnEndedJob) {
  run_command({"SADD", "mj:dependencies:" + key(5), key(3)});
  expect_found("waiting-ended", true);
}
TEST_P(Planted, FindsALostWakeUp) {
  submit(31);
  run_command({"HSET", key(31), "dependends", "[3]"});
  ASSERT_FALSE(claim(64).empty());  // job 3 has finished, so 31 runs
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsARecordWronglyMarkedStarted) {
  run_command({"HSET", key(1), "status", "started"});
  expect_found("started-unclaimed", true);
}
TEST_P(Planted, FindsAHigherEpochOnTheRecord) {
  run_command({"HSET", key(2), "epoch", "9007199254740991"});
  expect_found("record-epoch", false);
}
TEST_P(Planted, FindsAWrongMessageCounter) {
  run_command({"HSET", "mj:message:message:9:1", "left", "4"});
  expect_found("message-count", false);
}

TEST_P(Planted, FindsAMessageThatCountsUnknownJobs) {
  run_command({"HSET", "mj:message:message:9:7", "state", "taken", "left", "2", "taken_ms", "5"});
  expect_found("message-count", false);
}
TEST_P(Planted, FindsAnUnsentMessage) {
  route_job_message();
  run_command({"ZREM", "mj:outbox", "send message:12:5"});
  expect_found("message-outbox", true);
  EXPECT_EQ(store_->due_messages(1, 10, 1000, false).value().outbox.size(), 1U);
}
TEST_P(Planted, FindsAMessageWithoutATimeoutEntry) {
  route_job_message();
  const OutboxEntry sent{"send message:12:5", "send", "message:12:5", {}};
  ASSERT_TRUE(store_->complete_delivery(1, sent, {MailResult::Kind::delivered, 0, "", ""}));
  run_command({"ZREM", "mj:outbox", "expire message:12:5"});
  expect_found("message-outbox", true);
  EXPECT_TRUE(store_->due_messages(1, 10, 1000, false).value().outbox.empty()) << "the entry is not due yet";
}
TEST_P(Planted, FindsAMessageThatIsNeverAccepted) {
  receive_job_message();
  run_command({"DEL", "mj:inbox"});
  expect_found("message-inbox", true);
  EXPECT_THAT(store_->due_messages(1, 10, 1000, false).value().inbox, testing::ElementsAre("message:12:5"));
}
TEST_P(Planted, FindsAMissingAnswer) {
  receive_job_message();
  ASSERT_TRUE(store_->close_message(1, "msg_in", "message:12:5", "no"));
  run_command({"DEL", "mj:outbox"});
  expect_found("message-outbox", true);
}
TEST_P(Planted, FindsUnsentLines) {
  receive_job_message();
  ASSERT_TRUE(store_->accept_message(1, {"msg_in", "message:12:5", {{job(50), "queue:python"}}, 0, {"job:7:1"}}));
  run_command({"ZREM", "mj:outbox", "logs message:12:5"});
  expect_found("message-outbox", true);
}
TEST_P(Planted, FindsAnInvalidOutbox) {
  route_job_message();
  run_command({"DEL", "mj:outbox"});
  backend_->put_text(1, "mj:outbox", "mine");
  EXPECT_EQ(violated_rules(), std::set<std::string>{"message-outbox"});
  EXPECT_THAT(run_rebuild(), testing::Contains(HasSubstr("cannot be repaired")));
  run_command({"DEL", "mj:outbox"});
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}
TEST_P(Planted, FindsAMissingJournal) {
  run_command({"DEL", "mj:journal:queue:python"});
  expect_found("fact-missing", true);
}
TEST_P(Planted, FindsAnInvalidQueue) {
  run_command({"DEL", "queue:python"});
  backend_->put_text(1, "queue:python", "mine");
  EXPECT_EQ(violated_rules(), (std::set<std::string>{"job-not-indexed", "record-not-queued", "queue-type"}));
  EXPECT_THAT(run_rebuild(), testing::Contains(HasSubstr("cannot be repaired"))) << "the other findings are repaired";
  run_command({"DEL", "queue:python"});
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}

MJ_BOTH_STORES(Planted);

}  // namespace
}  // namespace mycojobs
