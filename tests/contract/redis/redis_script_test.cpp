// The server-side scripts with hostile keys, and with a server that forgets loaded scripts.
#include <gmock/gmock.h>

#include "contract/store_contract.h"
#include "store/lua_scripts.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class HostileKeys : public StoreContract {
 protected:
  Reply run_command(const std::vector<std::string>& words) { return backend_->run_command(1, words); }
};
class RedisScript : public HostileKeys {};  // tests that need a real server

TEST_P(RedisScript, FlushedScriptsAreLoadedAgain) {
  submit(1);
  run_command({"SCRIPT", "FLUSH"});
  const ClaimedJob claimed = claim_one();
  run_command({"SCRIPT", "FLUSH"});
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  const auto loaded_scripts =
      run_command({"SCRIPT", "EXISTS", std::string(scripts::report.sha1), std::string(scripts::claim.sha1)});
  EXPECT_EQ(loaded_scripts.at(0).number(), 1U) << "the digest computed at build time is correct";
}

TEST_P(HostileKeys, SharedKeysOfAnotherTypeAreErrorsAndLoseNoJob) {
  for (const std::string key :
       {"mj:leases", "mj:dead-letters", "mj:anomalies", "mj:missing-records", "mj:delayed", "mj:ended",
        "mj:prerequisites", "mj:queue-deadlines", "mj:queues", "mj:pending-releases", "mj:paused"}) {
    run_command({"FLUSHDB"});
    submit(1);
    run_command({"SET", key, "planted"});
    const auto refused = store_->claim(request());
    EXPECT_EQ(outcome(refused), "invalid") << key;
    EXPECT_THAT(refused.error().message, HasSubstr(key + " is a string"));
    EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
    run_command({"DEL", key});
    EXPECT_EQ(claim().size(), 1U);
  }
}

TEST_P(HostileKeys, ClaimKeyOfAnotherTypeEndsOnlyItsJob) {
  submit(1);
  submit(2);
  run_command({"SET", "mj:claim:job:12:1", "planted"});
  const auto jobs = claim(5);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].ref.job_key, "job:12:2");
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(last_dead_reason(), "wrong_type");
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:1")), "invalid");
}

TEST_P(HostileKeys, OverwrittenClaimKeyMakesTheClaimInvalid) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  run_command({"SET", "mj:claim:job:12:1", "planted"});
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 1000).value().at(0), Renewal::stale);
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "invalid");
  EXPECT_EQ(outcome(report(LogAppend{claimed.ref, {{1, 1, LogStream::out, "x"}}})), "stale_claim");
}

TEST_P(HostileKeys, LogKeyOfAnotherTypeLosesOnlyLines) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  run_command({"SET", "mj:log:job:12:1", "planted"});
  EXPECT_EQ(outcome(report(LogAppend{claimed.ref, {{1, 1, LogStream::out, "x"}}})), "invalid");
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_EQ(outcome(store_->logs(1, "job:12:1", 0, 10, 0)), "invalid");
}

TEST_P(HostileKeys, ForeignEntriesInALogLoseOnlyLines) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  run_command({"XADD", "mj:log:job:12:1", "18446744073709551615-18446744073709551615", "text", "planted"});
  (void)report(LogAppend{claimed.ref, {{1, 1, LogStream::out, "x"}}});
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
}

TEST_P(HostileKeys, RecordOfAnotherTypeStillEnds) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  run_command({"SET", "job:12:1", "planted"});
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(last_dead_reason(), "wrong_type");
  EXPECT_TRUE(store_->leases(1).value().empty());
}

TEST_P(HostileKeys, QueueOfAnotherTypeKeepsTheClaim) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  run_command({"SET", "queue:python", "planted"});
  EXPECT_EQ(outcome(report(Release{claimed.ref, "drain"})), "invalid");
  run_command({"DEL", "queue:python"});
  EXPECT_EQ(outcome(report(Release{claimed.ref, "drain"})), "ok");
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1");
}

TEST_P(HostileKeys, InvalidClaimFieldDoesNotStopAJob) {
  submit(1);
  run_command({"HSET", "mj:claim:job:12:1", "epoch", "nan", "deliveries", "-1", "attempt", "inf", "state", "?",
               "until_ms", "x"});
  const ClaimedJob claimed = claim_one();
  EXPECT_GT(claimed.epoch, 1600000000000000U);
  EXPECT_EQ(claimed.deliveries, 1U);
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
}

TEST_P(HostileKeys, LeaseWithoutAClaimIsRemoved) {
  run_command({"ZADD", "mj:leases", "5", "job:12:1"});
  EXPECT_FALSE(expire("job:12:1"));
  EXPECT_TRUE(store_->leases(1).value().empty());
}

TEST_P(HostileKeys, EpochGrowsAfterALostTail) {
  submit(1);
  run_command({"HSET", "mj:claim:job:12:1", "epoch", "9000000000000000"});
  EXPECT_EQ(claim_one().epoch, 9000000000000001U);
}

TEST_P(RedisScript, TokenIsNotInTheDatabase) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  const auto keys = store_->keys(1, "", 1000).value();
  for (const std::string& key : keys) {
    const std::string dumped(run_command({"DUMP", key}).text());
    EXPECT_EQ(dumped.find(claimed.ref.token), std::string::npos) << key;
  }
}

TEST_P(HostileKeys, OtherKeysOfAnotherTypeAreErrors) {
  run_command({"LPUSH", "mj:next:12", "x"});
  EXPECT_EQ(outcome(store_->submit(job(0))), "invalid");
  run_command({"SET", "mj:runner-owner:20", "x"});
  Runner runner;
  runner.id = 20;
  RunnerHolder held_by;
  EXPECT_EQ(outcome(store_->hold_runner(1, runner, {"a", "h", "b", 1}, 1000, "", held_by)), "invalid");
  run_command({"SET", "mj:topic:t", "x"});
  EXPECT_EQ(outcome(store_->send_to_topic(1, "t", "message:12:1", {{"id", "1"}})), "invalid");
  EXPECT_EQ(outcome(store_->topic_pending(1, "t")), "invalid");
  EXPECT_EQ(outcome(store_->load(1, "message:12:1")), "not_found");
}

TEST_P(RedisScript, ServerMarkOfAnotherTypeIsAnError) {
  run_command({"DEL", "mj:server"});
  run_command({"HSET", "mj:server", "x", "y"});
  EXPECT_EQ(outcome(backend_->stores().open().value()->leases(1)), "invalid");
}

MJ_BOTH_STORES(HostileKeys);
INSTANTIATE_TEST_SUITE_P(Stores, RedisScript, testing::Values("redis"), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace mycojobs
