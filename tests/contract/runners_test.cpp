// The list of runners of a context, and its index mj:runners. The score of the member "*" of the index is the time of
// the last scan of all keys, which finds records that plain clients have written.
#include <gmock/gmock.h>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;

constexpr const char* kLastScanMember = "*";
constexpr std::uint64_t kScanIntervalMs = 600000;

class Runners : public StoreContract {
 protected:
  void hold(Id id) {
    Runner runner;
    runner.id = id;
    RunnerHolder holder;
    ASSERT_TRUE(store_->hold_runner(1, runner, {"aaaa", "host", "boot", 1}, 60000, "", holder));
  }
  // Writes a record as a plain client does.
  void write_record_without_index(Id id) {
    backend_->run_command(1, {"HSET", "runner:" + std::to_string(id), "id", std::to_string(id), "topic", "t"});
  }
  std::vector<Id> list_ids() {
    std::vector<Id> ids;
    const std::vector<RunnerInfo> runners = store_->runners(1).value();
    for (const RunnerInfo& info : runners) ids.push_back(info.runner.id);
    return ids;
  }
};

TEST_P(Runners, AreListedById) {
  write_record_without_index(100);  // before the index exists
  hold(20);
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 3, {{"topic", "t"}}}));
  EXPECT_THAT(list_ids(), ElementsAre(3, 20, 100));
  hold(19);
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 0, {{"topic", "t"}}}));
  EXPECT_THAT(list_ids(), ElementsAre(1, 3, 19, 20, 100));
}

TEST_P(Runners, RecordKeepsItsTopicQueuesAndKey) {
  const auto hold_with = [&](const std::string& topic, bool serves_only_own_queue, const std::string& key) {
    Runner runner;
    runner.id = 20;
    runner.topic = topic;
    runner.local = serves_only_own_queue;
    runner.pubkey = key;
    runner.slots = 4;
    RunnerHolder holder;
    return outcome(store_->hold_runner(1, runner, {"aaaa", "host", "boot", 1}, 60000, "", holder));
  };
  ASSERT_EQ(hold_with("first", true, ""), "ok");
  ASSERT_EQ(hold_with("second", false, "aa"), "ok");
  EXPECT_EQ(field("runner:20", "topic"), "first");
  EXPECT_EQ(field("runner:20", "local"), "true");
  EXPECT_EQ(field("runner:20", "pubkey"), "aa");
  EXPECT_EQ(hold_with("first", true, "bb"), "conflict");
  EXPECT_EQ(hold_with("first", true, ""), "conflict");
  EXPECT_EQ(field("runner:20", "pubkey"), "aa");
  ASSERT_EQ(hold_with("first", true, "aa"), "ok");
}

TEST_P(Runners, ForeignRecordsAreListedAfterAKeyScan) {
  hold(20);
  EXPECT_THAT(list_ids(), ElementsAre(20));
  write_record_without_index(21);
  EXPECT_THAT(list_ids(), ElementsAre(20)) << "the keys are scanned at most every 10 minutes";
  const std::uint64_t last_scan_ms = backend_->run_command(1, {"ZSCORE", "mj:runners", kLastScanMember}).number();
  backend_->run_command(1, {"ZADD", "mj:runners", std::to_string(last_scan_ms - kScanIntervalMs - 1), kLastScanMember});
  EXPECT_THAT(list_ids(), ElementsAre(20, 21));
}

// Each agent makes this query once per lease. Regression test: with a million queued jobs, a scan of the keys took 1.5
// seconds of Redis.
TEST_P(Runners, SilentRunnersAreFoundWithoutAKeyScan) {
  hold(20);
  hold(21);
  write_record_without_index(22);
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 23, {{"topic", "t"}}}));
  SilentRunners runners = store_->silent_runners(1, "lost").value();
  EXPECT_EQ(runners.live_count, 2U);
  EXPECT_TRUE(runners.entries.empty());
  backend_->run_command(1, {"HSET", "mj:runner-owner:21", "until_ms", "1"});
  runners = store_->silent_runners(1, "lost").value();
  EXPECT_EQ(runners.live_count, 1U);
  ASSERT_EQ(runners.entries.size(), 1U);
  EXPECT_EQ(runners.entries[0].id, 21U);
  EXPECT_FALSE(runners.entries[0].holder.instance.empty());
  backend_->run_command(1, {"HSET", "runner:21", "detail", "lost"});
  EXPECT_TRUE(store_->silent_runners(1, "lost").value().entries.empty());
  EXPECT_TRUE(backend_->run_command(1, {"ZSCORE", "mj:runners", kLastScanMember}).is_nil())
      << "the keys were not scanned";
  EXPECT_THAT(list_ids(), ElementsAre(20, 21, 22, 23));
  EXPECT_FALSE(backend_->run_command(1, {"ZSCORE", "mj:runners", kLastScanMember}).is_nil());
}

TEST_P(Runners, RunnerWithADeletedRecordReturnsAtItsHeartbeat) {
  hold(20);
  hold(21);
  EXPECT_THAT(list_ids(), ElementsAre(20, 21));
  backend_->erase(1, "runner:20");
  EXPECT_THAT(list_ids(), ElementsAre(21));
  EXPECT_TRUE(backend_->run_command(1, {"ZSCORE", "mj:runners", "20"}).is_nil());
  hold(20);
  EXPECT_THAT(list_ids(), ElementsAre(20, 21));
}

TEST_P(Runners, InvalidIndexMembersAreSkipped) {
  hold(20);
  backend_->run_command(1,
                        {"ZADD", "mj:runners", "0", "x", "0", "", "0", "020", "0", "-1", "0", "4294967296", "0", "21"});
  backend_->put_text(1, "runner:22", "no record");
  EXPECT_THAT(list_ids(), ElementsAre(20));
  backend_->put_text(1, "mj:runners", "planted");
  EXPECT_EQ(outcome(store_->runners(1)), "invalid");
}

MJ_BOTH_STORES(Runners);

}  // namespace
}  // namespace mycojobs
