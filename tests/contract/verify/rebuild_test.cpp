// The journals are sufficient to derive all other data.
#include "inspect/verify/rebuild.h"

#include <random>

#include "contract/verify_scenario.h"
#include "support/test_settings.h"

namespace mycojobs {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class Rebuild : public VerifyContract {
 protected:
  void SetUp() override {
    VerifyContract::SetUp();
    create_scenario();
  }
  std::vector<JobStoreState> places() {
    std::vector<std::string> keys;
    for (Id id = 1; id <= 20; ++id) keys.push_back(key(id));
    return store_->job_states(1, keys, true).value();
  }
  // Returns the place of each job as far as facts determine it. An entry that only waits to be dropped is left out.
  std::vector<std::string> whereabouts() {
    std::vector<std::string> out;
    for (const JobStoreState& job : places()) {
      std::string text = job.job_key + ' ' + job.claim.state + ' ' + job.claim.claim_id + ' ' + job.claim.token_hash +
                         ' ' + std::to_string(job.claim.epoch) + ' ' + std::to_string(job.claim.attempt) + ' ' +
                         std::to_string(job.claim.deliveries) + ' ' + job.claim.status + ' ' + job.claim.detail +
                         (job.claim.has_stale_entry || job.queue_entry_count == 0 ? "" : " listed") +
                         (job.in_priority_index ? " prioritised" : "") + (job.lease_until_ms ? " leased" : "") +
                         (job.due_ms ? " due " + std::to_string(*job.due_ms) : "") + (job.check_ms ? " checked" : "") +
                         (job.is_held ? " held" : "") + (job.occupies_slot ? " slot" : "") +
                         (job.in_ended_index ? " ended" : "");
      for (const std::string& dep : job.awaited_jobs) text += " waits for " + dep;
      out.push_back(text);
    }
    return out;
  }
  void erase_keys(const std::vector<std::string>& prefixes) {
    std::size_t erased = 0;
    for (const std::string& prefix : prefixes) {
      const auto keys = store_->keys(1, prefix, 10000).value();
      for (const std::string& each : keys) {
        run_command({"DEL", each});
        ++erased;
      }
    }
    ASSERT_GT(erased, 0U);
  }
};

TEST_P(Rebuild, F02IndexesAreRebuilt) {
  const auto before = whereabouts();
  erase_keys({"mj:leases", "mj:priority", "mj:delayed", "mj:dependencies", "mj:dependents", "mj:prerequisites",
              "mj:held:", "mj:held-concurrency-keys", "mj:running", "mj:ended", "mj:queues", "mj:queue-deadlines"});
  EXPECT_THAT(run_rebuild(true), testing::Not(IsEmpty()));
  const auto done = run_rebuild();
  EXPECT_THAT(done, Contains(HasSubstr(key(2) + " is live and its lease is not among the leases")));
  EXPECT_THAT(whereabouts(), testing::Pointwise(testing::Eq(), before));
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_THAT(run_rebuild(), IsEmpty());
  ASSERT_TRUE(store_->cancel(1, key(4)).has_value());
  EXPECT_EQ(field(key(5), "detail"), "dependency_failed") << "the dependent jobs are known again";
}

TEST_P(Rebuild, F02QueuesAreRebuilt) {
  erase_keys({"queue:"});
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_THAT(run_rebuild(), IsEmpty());
  std::vector<std::string> order;
  for (const ClaimedJob& each : claim(64)) order.push_back(each.ref.job_key);
  EXPECT_THAT(order, testing::ElementsAre(key(16), testing::AnyOf(key(10), key(11)), testing::AnyOf(key(10), key(11)),
                                          key(1), key(19), key(17)))
      << "order: priority, released jobs, order of arrival, unknown jobs";
}

// By these numbers readers find the output of earlier runs on the disks of their runners.
TEST_P(Rebuild, EarlierRunsOfALogAreRestored) {
  const auto log_runs = [this] { return std::string(run_command({"HGET", claim_key(11), "log_runs"}).text()); };
  const auto find_job = [this] {
    for (const ClaimedJob& job : claim(64)) {
      if (job.ref.job_key == key(11)) return job.ref;
    }
    ADD_FAILURE() << "job 11 is not queued";
    return ClaimRef{};
  };
  for (int run = 0; run < 2; ++run) {
    const ClaimRef claimed = find_job();
    EXPECT_EQ(outcome(report(LogAppend{claimed, {{1, 100, LogStream::out, std::string(100, 'x'), 100}}})), "ok");
    EXPECT_EQ(outcome(report(Release{claimed, "drain"})), "ok");
  }
  const std::string before = log_runs();
  EXPECT_EQ(std::count(before.begin(), before.end(), ' '), 1) << before;
  run_command({"DEL", claim_key(11)});
  run_rebuild();
  EXPECT_EQ(log_runs(), before);
  EXPECT_THAT(run_rebuild(), IsEmpty());
}

TEST_P(Rebuild, ClaimsAreRebuilt) {
  const auto before = whereabouts();
  erase_keys({"mj:claim:"});
  EXPECT_THAT(violated_rules(), Contains("claim-missing"));
  run_rebuild();
  EXPECT_THAT(whereabouts(), testing::Pointwise(testing::Eq(), before));
  EXPECT_THAT(run_rebuild(), IsEmpty());
  EXPECT_EQ(outcome(end(claimed_[2].ref, finished())), "ok") << "the owner of the claim can report the end";
  EXPECT_EQ(outcome(end(claimed_[3].ref, finished())), "ok") << "a repeated report of the same end";
}

TEST_P(Rebuild, ClaimsAndIndexesAreRebuiltTogether) {
  const auto before = whereabouts();
  erase_keys({"mj:claim:", "mj:leases", "mj:priority", "mj:delayed", "mj:dependencies", "mj:dependents",
              "mj:prerequisites", "mj:held:", "mj:running", "mj:ended", "mj:queues"});
  run_rebuild();
  EXPECT_THAT(whereabouts(), testing::Pointwise(testing::Eq(), before));
}

TEST_P(Rebuild, LiveClaimGetsAFullLease) {
  erase_keys({"mj:leases"});
  set_claim(2, "until_ms", "5000");
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_EQ(store_->renew(1, std::vector{claimed_[2].ref}, 60000).value().at(0), Renewal::renewed);
}

TEST_P(Rebuild, F22EndedJobStaysEnded) {
  set_claim(3, "state", "live");
  run_command({"ZREM", "mj:ended", key(3)});
  run_command({"HSET", key(3), "status", "started", "detail", "claimed"});
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_EQ(field(key(3), "status"), "finished");
  EXPECT_EQ(field(key(3), "detail"), "ok");
  EXPECT_EQ(outcome(end(claimed_[3].ref, finished({{"other", "end"}}))), "conflict");
}

TEST_P(Rebuild, F16RetryKeepsItsDueTime) {
  const auto due = places().at(8).due_ms;
  ASSERT_TRUE(due.has_value());
  erase_keys({"mj:claim:" + key(9), "mj:delayed"});
  run_rebuild();
  EXPECT_EQ(places().at(8).due_ms, due);
}

TEST_P(Rebuild, JobThatWasNeverPushedIsQueued) {
  run_command({"HSET", "job:12:40", "id", "40", "caller_id", "12", "context_id", "1", "script", "pass", "script_type",
               "v", "status", "dispatched"});
  EXPECT_THAT(run_rebuild(), Contains(HasSubstr("job:12:40")));
  EXPECT_EQ(store_->queue_length(1, "queue:v").value(), 1U);
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}

TEST_P(Rebuild, JobInANonDefaultQueueStaysThere) {
  run_command({"HSET", "job:12:40", "id", "40", "caller_id", "12", "context_id", "1", "script", "pass", "script_type",
               "python", "status", "dispatched"});
  backend_->push(1, "queue:v", "job:12:40");
  EXPECT_THAT(run_rebuild(), IsEmpty());
  EXPECT_EQ(store_->queue_length(1, "queue:v").value(), 1U);
}

TEST_P(Rebuild, LiveJobWithADeletedRecordStaysWithItsOwner) {
  run_command({"DEL", key(2)});
  run_rebuild();
  EXPECT_EQ(outcome(end(claimed_[2].ref, finished())), "ok") << "rebuild does not end a job that may still run";
}

TEST_P(Rebuild, QueuedJobWithADeletedRecordIsADeadLetter) {
  run_command({"DEL", key(1)});
  run_rebuild();
  EXPECT_EQ(field(key(1), "status"), "error");
  EXPECT_EQ(field(key(1), "detail"), "dead_letter");
  EXPECT_THAT(run_rebuild(), IsEmpty());
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}

TEST_P(Rebuild, MessageSettlesAfterItsClaimsAreRebuilt) {
  erase_keys({"mj:claim:"});
  run_rebuild();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  ASSERT_TRUE(store_->cancel(1, key(19)).has_value());
  EXPECT_EQ(field("message:9:1", "status"), "error");
}

TEST_P(Rebuild, UnreadableKeysAreReportedAndKept) {
  add_fact(2, {"exploded"});
  EXPECT_THAT(run_rebuild(), Contains(HasSubstr("its claim is kept")));
  EXPECT_EQ(outcome(end(claimed_[2].ref, finished())), "ok");
}

// Only the revision shows that the fact was written since the read, because the claim does not list it.
TEST_P(Rebuild, UnreadFactPreventsARepair) {
  const JobStoreState seen = places().at(1);
  const std::uint64_t head = store_->journal(1, "queue:python", 0, 100000).value().back().revision;
  const JobFix fix{JobFix::Kind::set_claim, JobFix::JobIndex::none, {}, 0, {{"state", "queued"}}};
  add_fact(2, {"heartbeat", "c", claimed_[2].ref.claim_id}, false);
  const auto before = snapshot();
  EXPECT_FALSE(store_->repair(1, key(2), {seen.digest, "queue:python", head, {fix}}).value());
  EXPECT_EQ(snapshot(), before);
  EXPECT_TRUE(store_->repair(1, key(2), {seen.digest, "queue:python", head + 1, {fix}}).value());
}

TEST_P(Rebuild, EmptyStoreIsRebuiltAtOnce) {
  run_command({"FLUSHDB"});
  EXPECT_THAT(run_rebuild(), IsEmpty());
  EXPECT_EQ(run_verify().jobs, 0U);
}

// Damages all data at random except the journals, the records and other primary data. The derived data must be
// restored.
TEST_P(Rebuild, F36AnyDamageIsRepaired) {
  const auto seed = static_cast<unsigned>(test::read_setting("MYCOJOBS_SEED", 1));
  std::mt19937 random(seed);
  const auto random_below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  const std::vector<std::string> fields{"state",      "claim_id", "token",  "epoch",    "attempt",
                                        "deliveries", "queue",    "status", "detail",   "end",
                                        "ended_ms",   "until_ms", "revs",   "lease_ms", "ckey"};
  const std::vector<std::string> values{"",  "queued", "live",    "ended", "held",    "waiting",
                                        "0", "7",      "queue:v", "1 2 3", "nonsense"};
  for (int round = 0; round < 6; ++round) {
    SetUp();
    SCOPED_TRACE("MYCOJOBS_SEED=" + std::to_string(seed) + " round " + std::to_string(round));
    std::string done;
    const auto apply_damage = [&](const std::vector<std::string>& words) {
      for (const std::string& word : words) done += word + ' ';
      done += "; ";
      backend_->send_unchecked(1, words);
    };
    for (int i = 0; i < 6; ++i) {
      const std::string job = key(static_cast<Id>(1 + random_below(21)));
      const std::string named =
          key(static_cast<Id>(1 + random_below(16)));  // for the other jobs, no fact determines the claim
      const std::vector<std::vector<std::string>> breakings{
          {"DEL", "mj:claim:" + job},
          {"HSET", "mj:claim:" + named, fields[random_below(fields.size())], values[random_below(values.size())]},
          {"HDEL", "mj:claim:" + named, fields[random_below(fields.size())]},
          {"LREM", "queue:python", "0", job},
          {"RPUSH", "queue:python", job},
          {"ZREM", "mj:leases", job},
          {"ZADD", "mj:leases", "4102444800000", job},
          {"ZADD", "mj:delayed", "4102444800000", job},
          {"ZADD", "mj:ended", "5", job},
          {"ZREM", "mj:ended", job},
          {"ZADD", "mj:prerequisites", "5", job},
          {"ZADD", "mj:priority:queue:python", "5", job},
          {"SADD", "mj:running:db", job},
          {"SREM", "mj:running:db", job},
          {"SADD", "mj:dependencies:" + job, key(static_cast<Id>(1 + random_below(20)))},
          {"DEL", "mj:dependencies:" + job},
          {"DEL",
           std::vector<std::string>{"mj:delayed", "mj:ended", "mj:leases", "mj:held:db", "mj:running:db", "mj:queues",
                                    "mj:prerequisites", "mj:dependents:" + key(4)}[random_below(8)]},
          {"HSET", job, "status",
           std::vector<std::string>{"started", "finished", "error", "dispatched"}[random_below(4)]},
      };
      apply_damage(breakings[random_below(breakings.size())]);
    }
    SCOPED_TRACE(done);
    run_verify();
    run_rebuild();
    const auto report = run_verify();
    for (const Finding& each : report.findings) {
      if (each.violation) ADD_FAILURE() << each.rule << ": " << each.text;
    }
    const auto once = snapshot();
    EXPECT_THAT(run_rebuild(), IsEmpty());
    EXPECT_EQ(snapshot(), once);
  }
}

MJ_BOTH_STORES(Rebuild);

}  // namespace
}  // namespace mycojobs
