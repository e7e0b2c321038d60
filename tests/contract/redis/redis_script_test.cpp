// The server-side scripts with hostile keys, and with a server that forgets loaded scripts.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "contract/bench.h"
#include "store/keys.h"
#include "store/lua_scripts.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class HostileKeys : public StoreContract {
 protected:
  Reply plain(const std::vector<std::string>& words) { return bench_->plain(1, words); }
};
class RedisScript : public HostileKeys {};  // tests that need a real server

TEST_P(RedisScript, FlushedScriptsAreLoadedAgain) {
  submit(1);
  plain({"SCRIPT", "FLUSH"});
  const ClaimedJob got = claim_one();
  plain({"SCRIPT", "FLUSH"});
  EXPECT_EQ(outcome(end(got.ref, finished())), "ok");
  const auto known = plain({"SCRIPT", "EXISTS", std::string(scripts::report.sha1), std::string(scripts::claim.sha1)});
  EXPECT_EQ(known.at(0).number(), 1U) << "the digest that was computed when the program was built is right";
}

TEST_P(HostileKeys, SharedKeysOfAnotherTypeAreErrorsAndLoseNoJob) {
  for (const std::string key : {"mj:leases", "mj:dead", "mj:anomalies", "mj:missing", "mj:delayed", "mj:ended",
                                "mj:prerequisites", "mj:overdue", "mj:queues", "mj:settling", "mj:paused"}) {
    plain({"FLUSHDB"});
    submit(1);
    plain({"SET", key, "planted"});
    const auto refused = store_->claim(request());
    EXPECT_EQ(outcome(refused), "invalid") << key;
    EXPECT_THAT(refused.error().message, HasSubstr(key + " is a string"));
    EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
    plain({"DEL", key});
    EXPECT_EQ(claim().size(), 1U);
  }
}

TEST_P(HostileKeys, ClaimKeyOfAnotherTypeEndsOnlyItsJob) {
  submit(1);
  submit(2);
  plain({"SET", "mj:claim:job:12:1", "planted"});
  const auto jobs = claim(5);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].ref.job_key, "job:12:2");
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(last_dead_reason(), "wrong_type");
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:1")), "invalid");
}

TEST_P(HostileKeys, OverwrittenClaimKeyMakesTheClaimInvalid) {
  submit(1);
  const ClaimedJob got = claim_one();
  plain({"SET", "mj:claim:job:12:1", "planted"});
  EXPECT_EQ(store_->renew(1, std::vector{got.ref}, 1000).value().at(0), Renewal::stale);
  EXPECT_EQ(outcome(end(got.ref, finished())), "invalid");
  EXPECT_EQ(outcome(report(LogAppend{got.ref, {{1, 1, LogStream::out, "x"}}})), "stale_claim");
}

TEST_P(HostileKeys, LogKeyOfAnotherTypeLosesOnlyLines) {
  submit(1);
  const ClaimedJob got = claim_one();
  plain({"SET", "mj:log:job:12:1", "planted"});
  EXPECT_EQ(outcome(report(LogAppend{got.ref, {{1, 1, LogStream::out, "x"}}})), "invalid");
  EXPECT_EQ(outcome(end(got.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_EQ(outcome(store_->logs(1, "job:12:1", 0, 10, 0)), "invalid");
}

TEST_P(HostileKeys, ForeignEntriesInALogLoseOnlyLines) {
  submit(1);
  const ClaimedJob got = claim_one();
  plain({"XADD", "mj:log:job:12:1", "18446744073709551615-18446744073709551615", "text", "planted"});
  (void)report(LogAppend{got.ref, {{1, 1, LogStream::out, "x"}}});
  EXPECT_EQ(outcome(end(got.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
}

TEST_P(HostileKeys, RecordOfAnotherTypeStillEnds) {
  submit(1);
  const ClaimedJob got = claim_one();
  plain({"SET", "job:12:1", "planted"});
  EXPECT_EQ(outcome(end(got.ref, finished())), "ok");
  EXPECT_EQ(last_dead_reason(), "wrong_type");
  EXPECT_TRUE(store_->leases(1).value().empty());
}

TEST_P(HostileKeys, QueueOfAnotherTypeKeepsTheClaim) {
  submit(1);
  const ClaimedJob got = claim_one();
  plain({"SET", "queue:python", "planted"});
  EXPECT_EQ(outcome(report(Release{got.ref, "drain"})), "invalid");
  plain({"DEL", "queue:python"});
  EXPECT_EQ(outcome(report(Release{got.ref, "drain"})), "ok");
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1");
}

TEST_P(HostileKeys, InvalidClaimFieldDoesNotStopAJob) {
  submit(1);
  plain({"HSET", "mj:claim:job:12:1", "epoch", "nan", "deliveries", "-1", "attempt", "inf", "state", "?", "until_ms",
         "x"});
  const ClaimedJob got = claim_one();
  EXPECT_GT(got.epoch, 1600000000000000U);
  EXPECT_EQ(got.deliveries, 1U);
  EXPECT_EQ(outcome(end(got.ref, finished())), "ok");
}

TEST_P(HostileKeys, LeaseWithoutAClaimIsRemoved) {
  plain({"ZADD", "mj:leases", "5", "job:12:1"});
  EXPECT_FALSE(expire("job:12:1"));
  EXPECT_TRUE(store_->leases(1).value().empty());
}

TEST_P(HostileKeys, EpochGrowsAfterALostTail) {
  submit(1);
  plain({"HSET", "mj:claim:job:12:1", "epoch", "9000000000000000"});
  EXPECT_EQ(claim_one().epoch, 9000000000000001U);
}

TEST_P(RedisScript, TokenIsNotInTheDatabase) {
  submit(1);
  const ClaimedJob got = claim_one();
  const auto keys = store_->keys(1, "", 1000).value();
  for (const std::string& key : keys) {
    const std::string dumped(plain({"DUMP", key}).text());
    EXPECT_EQ(dumped.find(got.ref.token), std::string::npos) << key;
  }
}

TEST_P(HostileKeys, OtherKeysOfAnotherTypeAreErrors) {
  plain({"LPUSH", "mj:next:12", "x"});
  EXPECT_EQ(outcome(store_->submit(job(0))), "invalid");
  plain({"SET", "mj:hold:runner:20", "x"});
  Runner runner;
  runner.id = 20;
  RunnerHolder held_by;
  EXPECT_EQ(outcome(store_->hold_runner(1, runner, {"a", "h", "b", 1}, 1000, "", held_by)), "invalid");
  plain({"SET", "mj:topic:t", "x"});
  EXPECT_EQ(outcome(store_->topic_send(1, "t", "message:12:1", {{"id", "1"}})), "invalid");
  EXPECT_EQ(outcome(store_->topic_pending(1, "t")), "invalid");
  EXPECT_EQ(outcome(store_->load(1, "message:12:1")), "not_found");
}

TEST_P(RedisScript, ServerMarkOfAnotherTypeIsAnError) {
  plain({"DEL", "mj:server"});
  plain({"HSET", "mj:server", "x", "y"});
  EXPECT_EQ(outcome(bench_->stores().open().value()->leases(1)), "invalid");
}

TEST_P(RedisScript, EveryKeyIsInTheTable) {
  const std::regex name("mj:[a-z_]+");
  std::set<std::string> known{"mj:wake", "mj:mail", "mj:router"};  // channels
  for (const InternalKey& key : own_keys()) {
    std::smatch match;
    const std::string pattern(key.pattern);
    ASSERT_TRUE(std::regex_search(pattern, match, name));
    known.insert(match.str());
  }
  for (const auto& file : std::filesystem::recursive_directory_iterator(mj::test::source_path("agent/store/scripts"))) {
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    const std::string script = text.str();
    for (std::sregex_iterator each(script.begin(), script.end(), name), end; each != end; ++each) {
      EXPECT_TRUE(known.contains(each->str())) << each->str() << " in " << file.path();
    }
  }
}

MJ_BOTH_STORES(HostileKeys);
INSTANTIATE_TEST_SUITE_P(Stores, RedisScript, testing::Values("redis"), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace mycojobs
