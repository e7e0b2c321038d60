// Leases and fences.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "store/redis/redis_stores.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
class Lease : public StoreContract {};  // NOLINT: the suite's name

TEST_P(Lease, RenewalMovesItsExpiry) {
  submit(1);
  const ClaimedJob claimed = claim_one(60000);
  const auto before = store_->leases(1).value();
  ASSERT_EQ(before.size(), 1U);
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 120000).value().at(0), Renewal::renewed);
  const auto after = store_->leases(1).value();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_GT(after[0].until_ms, before[0].until_ms);
  EXPECT_EQ(field("job:12:1", "lease_until_ms"), std::to_string(after[0].until_ms));
}

// A shorter lease has the effect of a clock that was set back.
TEST_P(Lease, RenewalNeverMovesItsExpiryBack) {
  submit(1);
  const ClaimedJob claimed = claim_one(600000);
  const auto before = store_->leases(1).value();
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 1000).value().at(0), Renewal::renewed);
  EXPECT_GT(store_->leases(1).value().at(0).until_ms, before.at(0).until_ms);
}

TEST_P(Lease, ServerRestartShortensNoLease) {
  submit(1);
  claim_one(600000);
  const std::uint64_t until_ms = store_->leases(1).value().at(0).until_ms;
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "lease_ms", "1000"});
  backend_->put_text(1, "mj:server", "the server as it was before");
  if (std::string_view(GetParam()) == "memory") return;  // the imitation never restarts
  RedisStoreConfig config;                               // of another process, which has not seen this server yet
  config.default_url = TestRedis::instance().url();
  EXPECT_EQ(Store(config).leases(1).value().at(0).until_ms, until_ms);
  EXPECT_NE(backend_->run_command(1, {"GET", "mj:server"}).text(), "the server as it was before");
}

TEST_P(Lease, MultiplePagesAreRead) {
  std::vector<std::string> words{"ZADD", "mj:leases"};
  for (int i = 0; i < 2600; ++i) {
    words.push_back(std::to_string(i < 1500 ? 5000 : 5000 + i));  // more than a page of leases with the same end
    words.push_back("job:13:" + std::to_string(i + 1));
  }
  backend_->run_command(1, words);
  submit(1);
  submit(2);
  const ClaimedJob first = claim_one(60000), last = claim_one(7200000);
  const auto leases = store_->leases(1).value();
  std::set<std::string> jobs;
  for (const auto& lease : leases) jobs.insert(lease.job_key);
  EXPECT_EQ(leases.size(), 2602U);
  EXPECT_EQ(jobs.size(), 2602U);
  EXPECT_EQ(store_->expire_instance(1, 20, "").value(), std::vector<std::string>{});
  backend_->run_command(1, {"HSET", "mj:claim:" + last.ref.job_key, "instance", "i"});
  EXPECT_EQ(store_->expire_instance(1, 20, "i").value(), std::vector<std::string>{last.ref.job_key});
  EXPECT_EQ(store_->leases(1)->size(), 2601U);
}

TEST_P(Lease, RenewalAfterTheEndIsRejected) {
  submit(1);
  const ClaimedJob claimed = claim_one(1);
  wait_for_lease_expiry(claimed);
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 60000).value().at(0), Renewal::stale);
  EXPECT_THAT(last_anomaly(), HasSubstr("too late"));
}

TEST_P(Lease, RenewalOvertakenByItsOwnReportIsNoAnomaly) {
  for (const Id id : {1U, 2U, 3U}) submit(id);
  const auto claimed = claim(3);
  ASSERT_EQ(claimed.size(), 3U);
  JobEnd failed;
  failed.detail = "exit";
  EXPECT_EQ(outcome(end(claimed[0].ref, finished())), "ok");
  EXPECT_EQ(outcome(report(EndReport{claimed[1].ref, failed, 3600000})), "ok");
  EXPECT_EQ(outcome(report(Release{claimed[2].ref, "drain"})), "ok");
  for (const ClaimedJob& each : claimed) {
    EXPECT_EQ(store_->renew(1, std::vector{each.ref}, 60000).value().at(0), Renewal::stale);
  }
  EXPECT_TRUE(store_->anomalies(1, 10).value().empty());
}

TEST_P(Lease, RenewalOfALostJobIsAnAnomaly) {
  submit(1);
  const ClaimedJob claimed = claim_one(1);
  wait_for_lease_expiry(claimed);
  ASSERT_TRUE(expire("job:12:1"));
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 60000).value().at(0), Renewal::stale);
  EXPECT_THAT(last_anomaly(), HasSubstr("a renewal by claim"));
}

TEST_P(Lease, NoReportIsAcceptedAfterTheEnd) {
  submit(1);
  const ClaimedJob claimed = claim_one(1);
  wait_for_lease_expiry(claimed);
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "stale_claim");
  EXPECT_EQ(outcome(report(LogAppend{claimed.ref, {{1, 1, LogStream::out, "late"}}})), "stale_claim");
  EXPECT_EQ(outcome(report(Release{claimed.ref, "drain"})), "stale_claim");
  EXPECT_EQ(field("job:12:1", "status"), "started");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 10, 0).value().lines.empty());
}

TEST_P(Lease, StaleTokenCannotComplete) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  ClaimRef forged = claimed.ref;
  forged.token.back() = forged.token.back() == '0' ? '1' : '0';
  EXPECT_EQ(outcome(end(forged, finished())), "stale_claim");
  EXPECT_EQ(store_->renew(1, std::vector{forged, claimed.ref}, 60000).value(),
            (std::vector{Renewal::stale, Renewal::renewed}));
  forged = claimed.ref;
  forged.claim_id = "0";
  EXPECT_EQ(outcome(end(forged, finished())), "stale_claim");
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
}

TEST_P(Lease, ExpiredJobIsDeliveredAgainWithAHigherEpoch) {
  submit(1);
  submit(2);
  const ClaimedJob first = claim_one(1);
  wait_for_lease_expiry(first);
  EXPECT_TRUE(expire("job:12:1"));
  EXPECT_EQ(field("job:12:1", "status"), "dispatched");
  EXPECT_EQ(field("job:12:1", "claim_id"), "");
  EXPECT_TRUE(store_->leases(1).value().empty());
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.ref.job_key, "job:12:1");
  EXPECT_EQ(second.attempt, first.attempt);
  EXPECT_EQ(second.deliveries, 2U);
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_EQ(outcome(end(first.ref, finished({{"from", "the first"}}))), "stale_claim");
  EXPECT_EQ(outcome(end(second.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "result"), R"({"answer":"42"})");
}

TEST_P(Lease, LiveLeaseDoesNotExpire) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  EXPECT_FALSE(expire("job:12:1"));
  EXPECT_FALSE(store_->expire(1, mycojobs::Lease{"job:12:1", 1, 1000}).value());
  EXPECT_FALSE(store_->expire(1, mycojobs::Lease{"job:12:77", 1, 1000}).value());
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
}

TEST_P(Lease, RenewedLeaseDoesNotExpire) {
  submit(1);
  const ClaimedJob claimed = claim_one(60000);
  const auto stored_lease = store_->leases(1).value().at(0);
  ASSERT_EQ(store_->renew(1, std::vector{claimed.ref}, 90000).value().at(0), Renewal::renewed);
  EXPECT_FALSE(store_->expire(1, stored_lease).value());
}

TEST_P(Lease, LeaseExpiresOnce) {
  submit(1);
  const ClaimedJob claimed = claim_one(1);
  wait_for_lease_expiry(claimed);
  const auto stored_lease = store_->leases(1).value().at(0);
  EXPECT_TRUE(store_->expire(1, stored_lease).value());
  EXPECT_FALSE(store_->expire(1, stored_lease).value());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(Lease, ReleasedJobIsClaimedNextWithAHigherEpoch) {
  submit(1);
  submit(2);
  const ClaimedJob first = claim_one();
  EXPECT_EQ(outcome(report(Release{first.ref, "drain"})), "ok");
  EXPECT_EQ(outcome(report(Release{first.ref, "drain"})), "ok") << "a repeated release has the same reply";
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 2U);
  EXPECT_EQ(outcome(end(first.ref, finished())), "stale_claim");
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.ref.job_key, "job:12:1");
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_EQ(second.deliveries, 2U);
}

TEST_P(Lease, HeartbeatReportsACancellation) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 60000).value().at(0), Renewal::cancel);
  JobEnd cancelled;
  cancelled.detail = "cancelled";
  EXPECT_EQ(outcome(end(claimed.ref, cancelled)), "ok");
  EXPECT_EQ(field("job:12:1", "detail"), "cancelled");
  EXPECT_TRUE(store_->cancel(1, "job:12:1"));
}

TEST_P(Lease, CancelledJobOfADeadOwnerEndsAsCancelled) {
  submit(1);
  const ClaimedJob claimed = claim_one(1);
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  wait_for_lease_expiry(claimed);
  EXPECT_TRUE(expire("job:12:1"));
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(field("job:12:1", "detail"), "cancelled");
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "stale_claim");
}

TEST_P(Lease, CancelledJobThatIsReleasedEndsAsCancelled) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_EQ(outcome(report(Release{claimed.ref, "drain"})), "ok");
  EXPECT_EQ(field("job:12:1", "detail"), "cancelled");
  EXPECT_TRUE(claim().empty());
}

TEST_P(Lease, LiveClaimOutlivesItsRecord) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  backend_->erase(1, "job:12:1");
  EXPECT_EQ(store_->renew(1, std::vector{claimed.ref}, 60000).value().at(0), Renewal::renewed);
  EXPECT_EQ(outcome(store_->load(1, "job:12:1")), "not_found");
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
}

TEST_P(Lease, ContextsWithoutWorkAreQuiet) {
  const auto find_quiet = [&] {
    std::vector<Id> quiet;
    const std::map<Id, TimedWork> found = store_->find_timed_work(1, {1, 2, 3}, 800).value();
    for (const auto& [context, work] : found) {
      if (!work.is_due) quiet.push_back(context);
    }
    return quiet;
  };
  EXPECT_THAT(find_quiet(), testing::ElementsAre(1, 2, 3));
  submit(1);
  EXPECT_THAT(find_quiet(), testing::ElementsAre(1, 2, 3)) << "a job in a queue is found by the waiter";
  EXPECT_FALSE(store_->find_timed_work(1, {1}, 800).value().at(1).has_leases);
  claim_one(60000);
  const TimedWork work = store_->find_timed_work(1, {1, 2, 3}, 800).value().at(1);
  EXPECT_TRUE(work.has_leases);
  EXPECT_FALSE(work.is_due) << "leases need no tick";
  EXPECT_FALSE(work.last_search_ms);
  ASSERT_TRUE(store_->tick(1, {}));
  EXPECT_LT(store_->find_timed_work(1, {1}, 800).value().at(1).last_search_ms.value(), 60000U);
  const std::uint64_t now_ms = std::stoull(std::string(backend_->run_command(1, {"TIME"}).at(0).text())) * 1000;
  backend_->run_command(2, {"ZADD", "mj:delayed", std::to_string(now_ms + 3600000), "job:12:1"});
  EXPECT_THAT(find_quiet(), testing::ElementsAre(1, 2, 3)) << "work that is due much later";
  backend_->run_command(2, {"ZADD", "mj:delayed", std::to_string(now_ms), "job:12:2"});
  EXPECT_THAT(find_quiet(), testing::ElementsAre(1, 3));
  backend_->put_text(3, "mj:queue-deadlines", "mine");
  EXPECT_THAT(find_quiet(), testing::ElementsAre(1)) << "a key with a wrong type is reported by tick";
  EXPECT_EQ(store_->leases(1).value().size(), 1U) << "the selected database is that of the context";
}

MJ_BOTH_STORES(Lease);

}  // namespace
}  // namespace mycojobs
